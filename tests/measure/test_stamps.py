import os
import sys
from datetime import UTC, datetime

import pytest

from helpers.measure import measured_on
from helpers.measure.stamps import cpu_name, device_name


def test_a_stamp_names_the_device_and_the_day():
    before = datetime.now(UTC).date()
    words = measured_on("llvmpipe (LLVM 19.1.7)")
    name, _, day = words.removeprefix("measured on ").rpartition(", ")
    assert name == "llvmpipe (LLVM 19.1.7)"
    assert before <= datetime.fromisoformat(day).date() <= datetime.now(UTC).date()


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac asks sysctl")
def test_the_processor_is_named_as_linux_names_it(tmp_path):
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel\t\t: 106\nmodel name\t: AMD EPYC 9B14\n\nmodel name\t: other\n")
    assert cpu_name(info) == "AMD EPYC 9B14"
    for text in ("CPU part\t: 0xd40\n", "model name\t:\n"):  # many ARM systems give numbers only
        info.write_text(text)
        assert cpu_name(info) == cpu_name(tmp_path / "absent") == f"{os.uname().machine} CPU"


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs a processor mask")
def test_only_the_processors_that_may_be_used_count(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3})
    assert device_name().endswith(", 1 core")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3})
    assert device_name() == f"{cpu_name()}, 2 cores"
