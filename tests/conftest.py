"""What every test shares: figures without a window; under CI hypothesis draws the same examples each time."""

import os

import matplotlib

matplotlib.use("Agg")

try:
    from hypothesis import settings
except ImportError:  # the tests that use it need it; a page of `make course` does not
    pass
else:
    settings.register_profile("ci", derandomize=True, deadline=None)
    if os.environ.get("CI"):
        settings.load_profile("ci")
