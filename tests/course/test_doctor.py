import importlib
import json
import socket
from functools import partial

import pytest

from helpers import cli
from helpers.course import doctor
from helpers.course.doctor import Capability, Status
from helpers.profiling.counters import preflight

drivers = importlib.import_module("helpers.edge.vulkan.drivers")  # the package has a function of that name
DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  595.45.04  Thu Feb 19 2026\n"


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
        "newer Mesa",
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


@pytest.mark.parametrize(
    ("version", "params", "rights", "status", "words"),
    [
        ("", "", "0", "SKIP", "no NVIDIA driver: lessons show recorded kernels"),
        (DRIVER, "RmProfilingAdminOnly: 1", "a80425fb", "SKIP", "to administrators only"),
        (DRIVER, "RmProfilingAdminOnly: 1", "1ffffffffff", "OK", "counters are allowed"),
        (DRIVER, "RmProfilingAdminOnly: 0", "0", "OK", "counters are allowed"),
    ],
    ids=["no driver", "root of a container", "root", "open to all"],
)
def test_counters_are_what_a_collection_would_find(monkeypatch, tmp_path, version, params, rights, status, words):
    """The root user of a container has few of the capabilities of root: its user id says nothing."""
    for name, text in {"version": version, "params": params}.items():
        path = tmp_path / "proc/driver/nvidia" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "proc/self").mkdir()
    (tmp_path / "proc/self/status").write_text(f"CapEff:\t{rights}\n")
    tool = tmp_path / "ncu"
    tool.write_text("#!/bin/sh\necho Version 2026.1.0\n")
    tool.chmod(0o755)
    look = partial(preflight.preflight, proc=tmp_path / "proc", environ={"PATH": str(tmp_path)})
    monkeypatch.setattr(preflight, "preflight", look)
    [line] = doctor._counters()
    assert line.status == status and words in line.found
    assert bool(line.mend) == (words == "to administrators only")


def test_a_newer_mesa_that_is_not_here_has_its_mend(monkeypatch, tmp_path):
    monkeypatch.setattr(drivers, "newer_lavapipe", partial(drivers.newer_lavapipe, tmp_path))
    [line] = doctor._newer_mesa()
    assert line.status is Status.SKIP and drivers.MESA_SCRIPT in line.mend


@pytest.mark.parametrize(
    ("program", "status", "words"),
    [
        ("echo 'llvmpipe Mesa 99, cooperative matrix: 8×8×8 f16→f32'", "OK", "Mesa 99"),
        ("echo no such library >&2; exit 127", "SKIP", "no such library"),
        ("true", "SKIP", "lists no device"),
    ],
)
def test_a_newer_mesa_says_what_it_gives_or_why_it_does_not_load(monkeypatch, tmp_path, program, status, words):
    manifest, python = tmp_path / "root/usr/share/vulkan/icd.d/lvp_icd.json", tmp_path / "python"
    manifest.parent.mkdir(parents=True)
    manifest.write_text("{}")
    python.write_text(f"#!/bin/sh\n{program}\n")
    python.chmod(0o755)
    monkeypatch.setattr(drivers, "newer_lavapipe", partial(drivers.newer_lavapipe, tmp_path))
    [line] = doctor._newer_mesa()
    assert line.status == status and words in line.found
    assert bool(line.mend) == (status == "SKIP") == (str(tmp_path) in line.mend)


def test_a_line_is_read_without_colour():
    text = str(Capability("Vulkan", Status.SKIP, "no loader", "apt-get install libvulkan1"))
    assert text.splitlines()[0].startswith("[SKIP] Vulkan") and "-> apt-get" in text.splitlines()[1]
