"""Track: training."""
