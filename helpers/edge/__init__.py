"""Track: edge."""
