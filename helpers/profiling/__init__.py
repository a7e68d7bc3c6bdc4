"""Track: profiling."""
