"""The exercises of each track. A module a track, named after it, with a tuple `EXERCISES`."""
