"""Capturing on standard error: Kineto's marks for tracers are left out, and nothing else is."""

import os

import pytest
import torch

from helpers.profiling.capture import STANDARD_ERROR, capture, without_noise


def write(*lines: str) -> None:
    os.write(STANDARD_ERROR, "".join(f"{line}\n" for line in lines).encode())


def test_a_capture_says_nothing_and_its_steps_are_heard(tmp_path, capfd):
    number = iter(range(9))

    def step():
        write(f"step {next(number)}")
        torch.ones(8).sum()

    capture(step, tmp_path / "t.json", warmup=1, steps=2)
    assert capfd.readouterr().err.splitlines() == ["step 0", "step 1", "step 2"]


def test_errors_are_let_through_in_their_order(capfd):
    before = set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else set()
    with without_noise():
        write("USDT:2026-12-02 profiler_start", "ERROR: CUPTI said no", "WARNING of USDT: too", "USDT: last")
    write("after")
    assert capfd.readouterr().err.splitlines() == ["ERROR: CUPTI said no", "WARNING of USDT: too", "after"]
    assert not before or set(os.listdir("/proc/self/fd")) == before, "a descriptor is left open"


def test_an_exception_passes_and_standard_error_is_back(tmp_path, capfd):
    with pytest.raises(ZeroDivisionError), without_noise():
        write("last words")
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError):
        capture(lambda: 1 / 0, tmp_path / "t.json")
    write("after")
    assert capfd.readouterr().err.splitlines() == ["last words", "after"]
    assert list(tmp_path.iterdir()) == []


def test_steps_are_not_delayed_by_it(tmp_path, monkeypatch):
    """Standard error is turned aside where the profiler starts and stops, never during a step."""
    turned = []
    real = os.dup2
    monkeypatch.setattr(os, "dup2", lambda *where: (turned.append("turn"), real(*where))[1])
    capture(lambda: turned.append("step"), tmp_path / "t.json", wait=2, warmup=3, steps=4)
    aside = ["turn", "turn"]
    assert turned == [*aside, *["step"] * 5, *aside, *["step"] * 4, *aside, *aside]
