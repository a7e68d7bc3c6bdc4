"""Devices for the tests of the edge track, under the validation layer, which must stay silent."""

import subprocess
from functools import cache

import pytest

from helpers.edge.vulkan import Driver, NoVulkan, devices, driver, drivers, open_device, why_none
from helpers.edge.vulkan.drivers import MESA_SCRIPT, PROJECT, newer_lavapipe

KNOWN = ("lavapipe", "swiftshader")


@cache
def usable_drivers() -> tuple[str, ...]:
    """The drivers that have a device here, and the two that every machine should have."""
    found = [each.name for each in drivers() if each.in_process and _has_device(each)]
    return tuple(dict.fromkeys([*found, *KNOWN]))


def _has_device(each: Driver) -> bool:
    try:
        open_device(driver=each, validation=False).close()
    except NoVulkan:
        return False
    return True


def pytest_generate_tests(metafunc):
    if "driver_name" in metafunc.fixturenames:
        metafunc.parametrize("driver_name", usable_drivers(), scope="session")


@pytest.fixture(scope="session")
def any_driver(driver_name):
    """Each driver in turn; skips with what to install."""
    found = driver(driver_name)
    if found.why_not:
        pytest.skip(found.why_not)
    return found


@pytest.fixture(scope="session")
def open_any(any_driver):
    with open_device(driver=any_driver) as device:
        yield device


@pytest.fixture
def any_device(open_any):
    """A device of each driver; a message that the test did not take itself is a failure of the test."""
    yield open_any
    assert open_any.take_messages() == ()


@pytest.fixture(scope="session")
def session_device():
    if not devices():
        pytest.skip(why_none())
    with open_device() as device:
        yield device


@pytest.fixture
def device(session_device):
    """The device; a message that the test did not take itself is a failure of the test."""
    yield session_device
    assert session_device.take_messages() == ()


@pytest.fixture(scope="session")
def newer_mesa() -> Driver:
    """lavapipe with cooperative matrix, fetched on first use; skips with the script's own reason."""
    try:
        done = subprocess.run([PROJECT / MESA_SCRIPT], capture_output=True, text=True, timeout=400, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"{MESA_SCRIPT}: {error}")
    found = newer_lavapipe()
    if done.returncode or found.why_not:
        pytest.skip((done.stderr.strip().splitlines() or [found.why_not])[-1])
    return found
