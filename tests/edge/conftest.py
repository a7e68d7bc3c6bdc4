"""One device for the tests of the edge track, under the validation layer, which must stay silent."""

import pytest

from helpers.edge.vulkan import devices, open_device, why_none


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
