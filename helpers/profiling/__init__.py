"""Track 2: where the time goes, and what to do about it."""
