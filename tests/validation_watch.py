"""The whole run under the validation layer: each message that no test took fails the run, and is named at its end."""

import os
from functools import wraps

import pytest

from helpers.edge.vulkan import Device, Message, Recording
from helpers.edge.vulkan.instance import Instance, listeners


class ValidationWatch:
    """A pytest plugin. It counts the devices that were validated, and the dispatches on them.

    A test that provokes messages takes them with `take_messages()`; what it leaves behind is unexpected.
    Devices of child processes are not seen: the tests that start those compare what they print.
    """

    def __init__(self):
        self.devices = self.dispatches = 0
        self._received: list[tuple[str, list[Message], Message]] = []
        self._undo: list[tuple[type, str, object]] = []

    def pytest_sessionstart(self) -> None:
        listeners.append(self._receive)
        self._count(Device, "__init__", self._add_device)
        self._count(Recording, "submit", self._add_dispatches)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self.unexpected() and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter) -> None:
        if not self.devices:
            return
        unexpected, seen = self.unexpected(), f"{self.devices} devices, {self.dispatches} dispatches"
        if unexpected:
            terminalreporter.section("validation layer")
        for test, message in unexpected:
            terminalreporter.write_line(f"{test}: {message}", red=True)
        terminalreporter.write_line(
            f"validation: {seen}, {len(unexpected)} unexpected messages", red=bool(unexpected)
        )

    def pytest_unconfigure(self) -> None:
        listeners.remove(self._receive)
        for owner, name, function in self._undo:
            setattr(owner, name, function)

    def unexpected(self) -> list[tuple[str, Message]]:
        """Warnings and errors that nobody took, each with the test during which it came."""
        self._received = [entry for entry in self._received if any(entry[2] is left for left in entry[1])]
        return [(test, message) for test, _, message in self._received]

    def _receive(self, instance: Instance, message: Message) -> None:
        if message.severity in ("warning", "error"):
            test = os.environ.get("PYTEST_CURRENT_TEST", "outside of a test")
            self._received.append((test, instance.messages, message))

    def _add_device(self, device: Device) -> None:
        self.devices += device.info.validation

    def _add_dispatches(self, recording: Recording) -> None:
        if recording.device.info.validation:
            self.dispatches += sum(step.kernel is not None for step in recording.steps)

    def _count(self, owner: type, name: str, note) -> None:
        function = getattr(owner, name)

        @wraps(function)
        def counted(self, *args, **options):
            result = function(self, *args, **options)
            note(self)
            return result

        self._undo.append((owner, name, function))
        setattr(owner, name, counted)
