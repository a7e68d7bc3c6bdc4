"""What every test shares: figures without a window, a watch over the validation layer, the same examples under CI."""

import os

import matplotlib
from validation_watch import ValidationWatch

matplotlib.use("Agg")

try:
    from hypothesis import settings
except ImportError:  # the tests that use it need it; a page of `make course` does not
    pass
else:
    settings.register_profile("ci", derandomize=True, deadline=None)
    if os.environ.get("CI"):
        settings.load_profile("ci")


def pytest_configure(config):
    config.pluginmanager.register(ValidationWatch(), "validation-watch")
