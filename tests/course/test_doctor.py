import json
import socket

import pytest

from helpers import cli
from helpers.course import doctor
from helpers.course.doctor import Capability, Status


def test_every_line_says_what_was_found_and_a_failure_says_the_mend(capsys):
    code = cli.main(["doctor", "--json"])
    report = json.loads(capsys.readouterr().out)
    lines = report["capabilities"]
    assert code == int(any(line["status"] == "FAIL" for line in lines))
    assert {line["status"] for line in lines} <= {"OK", "SKIP", "FAIL"}
    assert all(line["name"] and line["found"] for line in lines)
    assert all(line["mend"] for line in lines if line["status"] == "FAIL")
    names = " ".join(line["name"] for line in lines)
    for expected in [
        "Python",
        "torch",
        "gloo ranks",
        "free port",
        "CUDA",
        "MPS",
        "Vulkan",
        "GPU counters",
        "disk",
    ]:
        assert expected in names
    assert report["target"] in {"cpu", "cuda-1", "cuda-4", "mps", "vulkan"}


def test_an_examination_that_raises_is_a_failed_line():
    def _broken_look():
        raise OSError("no such thing")
        yield

    [line] = doctor._guarded(_broken_look)
    assert line.status is Status.FAIL
    assert line.name == "broken look" and "OSError: no such thing" in line.found


def test_no_port_is_a_failed_line(monkeypatch):
    def refuse(*_):
        raise OSError("loopback is closed")

    monkeypatch.setattr(socket, "socket", refuse)
    assert [line.status for line in doctor._guarded(doctor._free_port)] == [Status.FAIL]


def test_too_little_disk_and_memory_fail(monkeypatch):
    from collections import namedtuple

    usage = namedtuple("usage", "free")
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage(2**28))
    assert [line.status for line in doctor._disk()] == [Status.FAIL]
    monkeypatch.setattr(doctor, "probe", lambda: doctor.Capabilities(memory_gib=2))
    assert [line.status for line in doctor._processor()] == [Status.OK, Status.FAIL]


@pytest.mark.parametrize(
    ("installed", "status", "words"),
    [
        ("2.13.0+cpu", "OK", "the version that was tested"),
        ("2.11.0", "OK", "tested with"),
        (None, "FAIL", "not installed"),
    ],
)
def test_torch_is_compared_with_the_pin(monkeypatch, tmp_path, installed, status, words):
    (tmp_path / "constraints.txt").write_text("torch==2.13.0\nnumpy==2.4.6\n")
    monkeypatch.setattr(doctor, "ROOT", tmp_path)
    monkeypatch.setattr(doctor, "_version", {"torch": installed, "numpy": "2.0"}.get)
    monkeypatch.setattr(doctor, "direct_dependencies", lambda: ("torch", "numpy"))
    torch, packages = doctor._packages()
    assert (torch.status, words in torch.found) == (status, True)
    assert packages.found == "other than tested: numpy"


def test_restricted_counters_are_a_skip_with_a_mend(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor.shutil, "which", lambda _: None)
    [line] = doctor._counters()
    assert line.status is Status.SKIP and "recorded" in line.found


def test_a_line_is_read_without_colour():
    text = str(Capability("Vulkan", Status.SKIP, "no loader", "apt-get install libvulkan1"))
    assert text.splitlines()[0].startswith("[SKIP] Vulkan") and "-> apt-get" in text.splitlines()[1]
