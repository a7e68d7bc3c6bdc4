"""The exercises of each track: a package a track, named after it, with a tuple `EXERCISES`."""
