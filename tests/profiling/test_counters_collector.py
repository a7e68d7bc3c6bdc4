"""Collection against a false ncu on PATH: it answers, hangs, is refused, or profiles nothing."""

import os
import stat
import sys
import time
from pathlib import Path

import psutil
import pytest
from counters_kit import REPORTS, kernels_of, recorded, wide_form

from helpers.profiling.counters.aliases import NEEDS
from helpers.profiling.counters.collector import LIMITER, ROOFLINE, STALL_NEEDS, collect, command, metrics_for
from helpers.profiling.counters.preflight import Level, capability, passes, preflight
from helpers.profiling.counters.record import CounterError, KernelRecord

TABLE = wide_form(
    {
        "my_kernel(float *)": {
            "device__attribute_display_name": ("", "NVIDIA H200"),
            "gpu__time_duration.sum": ("ns", "12,345"),
            "sm__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "41.5"),
        }
    }
)
FALSE_NCU = """#!{python}
import os, subprocess, sys, time
mode, words = os.environ.get("FALSE_NCU", "works"), sys.argv[1:]
if "--version" in words:
    print("" if mode == "mute" else "NVIDIA (R) Nsight Compute Command Line Profiler\\nVersion 2024.3.2.0 (build 1)")
    sys.exit(0)
if "--import" in words:
    assert open(words[words.index("--import") + 1]).read() == "a report"
    sys.stdout.write({table!r} if mode != "empty" else "==PROF== Connected to process 7\\n")
    sys.exit(0)
print("==PROF== Connected to process 7")
if mode == "refused":
    print("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters")
    sys.exit(1)
if mode == "hangs":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    open(os.environ["CHILD"], "w").write(str(child.pid))
    time.sleep(600)
if mode == "nothing":
    print("==PROF== Disconnected from process 7\\n==WARNING== No kernels were profiled.")
    sys.exit(0)
if mode == "dies":
    os.kill(os.getpid(), 11)
open(words[words.index("--export") + 1], "w").write("a report")
"""
FALSE_SMI = '#!{python}\nimport sys\nprint("9.0" if "compute_cap" in sys.argv[1] else "550.90.07")\n'


def program(path, text):
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def machine(tmp_path):
    """A machine with a false ncu, a driver that allows counters, and no other tool: (environ, proc)."""
    (tmp_path / "bin").mkdir()
    program(tmp_path / "bin" / "ncu", FALSE_NCU.format(python=sys.executable, table=TABLE))
    driver = tmp_path / "proc" / "driver" / "nvidia"
    driver.mkdir(parents=True)
    (driver / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31\nGCC 12\n")
    (driver / "params").write_text("ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: 0\n")
    own = tmp_path / "proc" / "self"
    own.mkdir()
    (own / "status").write_text("Name:\tpython\nCapEff:\t0000000000000000\n")
    return {"PATH": str(tmp_path / "bin"), "CHILD": str(tmp_path / "child")}, tmp_path / "proc"


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text("import torch\ntorch.ones(8, device='cuda').sum()\n")
    return path


FALLBACK = {"r": KernelRecord("recorded")}


def run(machine, script, tmp_path, mode="works", **options):
    environ, proc = machine
    return collect(
        script,
        folder=tmp_path / "out",
        environ=environ | {"FALSE_NCU": mode},
        proc=proc,
        fallback=FALLBACK,
        **options,
    )


def test_a_collection_that_works_is_live(machine, script, tmp_path):
    found = run(machine, script, tmp_path, kernels="my_kernel", deadline=60)
    assert found.live and not found.note and found.report.read_text() == "a report"
    (kernel,) = found.records
    assert (kernel.name, kernel.device, kernel.source.tool) == ("my_kernel(float *)", "NVIDIA H200", "ncu 2024.3.2")
    assert kernel.get("duration") == 12345e-9


@pytest.mark.parametrize(
    ("mode", "what", "mend"),
    [
        ("refused", "does not allow counters to this user", "NVreg_RestrictProfilingToAdminUsers=0"),
        ("nothing", "No kernels were profiled", "kernel filter"),
        ("dies", "exit status -11", "kernel filter"),
        ("empty", "no table is in this file", "--csv"),
        ("mute", "ncu --version does not answer", "terminal"),
    ],
)
def test_what_goes_wrong_is_said_and_recordings_stand_in(machine, script, tmp_path, mode, what, mend):
    found = run(machine, script, tmp_path, mode, deadline=60)
    assert not found.live and found.records == (KernelRecord("recorded"),) and found.report is None
    assert found.note.startswith("Recorded kernels stand in: ") and what in found.note and mend in found.note


def test_a_hang_ends_at_the_deadline_with_all_it_started(machine, script, tmp_path):
    started = time.monotonic()
    found = run(machine, script, tmp_path, "hangs", deadline=1.5)
    assert time.monotonic() - started < 30 and not found.live and "did not finish within 1.5 s" in found.note
    child = int((tmp_path / "child").read_text())
    for _ in range(100):
        if not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE:
            return
        time.sleep(0.05)
    pytest.fail("the child of the false ncu is still there")


def test_without_ncu_the_course_recordings_stand_in(tmp_path, script):
    found = collect(script, folder=tmp_path, environ={"PATH": str(tmp_path)}, proc=tmp_path)
    assert not found.live and "ncu is not on PATH" in found.note and len(found.records) >= 20
    assert all(record.source.origin for record in found.records)


def levels(checks):
    return {str(finding.level): finding.what for finding in reversed(checks.findings)}


def test_a_ready_machine_passes(machine, script):
    environ, proc = machine
    checks = preflight(script, metrics=metrics_for(LIMITER), environ=environ, proc=proc)
    assert checks.ready and (checks.ncu, checks.driver) == ("2024.3.2", "550.90.07")
    assert {finding.level for finding in checks.findings} == {Level.NOTE} and "counters are allowed" in str(checks)


@pytest.mark.parametrize(
    ("capabilities", "ready"), [("0", False), ("200000", True), ("4000000000", True), ("1000", False)]
)
def test_only_the_right_capability_lifts_the_restriction(machine, script, capabilities, ready):
    environ, proc = machine
    (proc / "driver/nvidia/params").write_text("RmProfilingAdminOnly: 1\n")
    (proc / "self/status").write_text(f"CapEff:\t{capabilities:0>16}\n")
    checks = preflight(script, environ=environ, proc=proc)
    assert checks.ready is ready
    if not ready:
        assert "RmProfilingAdminOnly" in checks.findings[0].what and "SYS_ADMIN" in checks.findings[0].mend


def test_a_container_without_proc_files_asks_nvidia_smi(machine, script, tmp_path):
    environ, proc = machine
    (proc / "driver/nvidia/version").unlink()
    assert not preflight(script, environ=environ, proc=proc).ready
    assert capability(environ) is None
    program(tmp_path / "bin" / "nvidia-smi", FALSE_SMI.format(python=sys.executable))
    (proc / "driver/nvidia/params").unlink()
    checks = preflight(script, environ=environ, proc=proc)
    assert checks.ready and checks.driver == "550.90.07" and "the run will tell" in str(checks)
    assert capability(environ) == (9, 0)


@pytest.mark.parametrize(
    ("text", "kernels", "warned"),
    [
        ("dist.init_process_group('nccl')", "", True),
        ("fully_shard(model)", ".*", True),
        ("fully_shard(model)", "^my_gemm", False),
        ("model(x)", "", False),
    ],
)
def test_nccl_is_warned_of(machine, script, text, kernels, warned):
    environ, proc = machine
    script.write_text(text)
    checks = preflight(script, kernels=kernels, environ=environ, proc=proc)
    assert ("nccl" in levels(checks).get("warn", "")) is warned and checks.ready


def test_several_ranks_are_refused(machine, script, tmp_path):
    environ, proc = machine
    checks = preflight(script, environ=environ | {"WORLD_SIZE": "4"}, proc=proc)
    assert not checks.ready and "WORLD_SIZE is 4" in checks.findings[0].what and "one rank" in checks.findings[0].mend
    assert preflight(script, environ=environ | {"WORLD_SIZE": "1"}, proc=proc).ready


def test_other_users_of_the_counters_are_named(machine, script):
    environ, proc = machine
    (proc / "4711").mkdir()
    (proc / "4711" / "comm").write_text("nv-hostengine\n")
    script.write_text("with torch.profiler.profile(): pass\n")
    checks = preflight(script, environ=environ | {"CUDA_INJECTION64_PATH": "/x.so"}, proc=proc)
    said = [finding.what for finding in checks.findings if finding.level is Level.WARN]
    assert [
        any(word in what for what in said) for word in ("nv-hostengine", "CUDA_INJECTION64", "torch.profiler")
    ] == [True] * 3 and checks.ready


def test_the_cost_is_told(machine, script):
    environ, proc = machine
    cheap = preflight(script, metrics=metrics_for(["duration"]), environ=environ, proc=proc)
    dear = preflight(script, full=True, launches=20, environ=environ, proc=proc)
    assert "passes for each launch: about 1" in str(cheap) and "runs about 940 times" in levels(dear)["warn"]


def test_the_estimate_is_that_of_the_recorded_replays():
    """The basic set is the SpeedOfLight, LaunchStats and Occupancy sections: its metrics stand in the file."""
    if not REPORTS:
        pytest.skip("needs the recorded reports of shared/profiles")
    for name in ("esmm_a10g_sgemm_ladder_5c6231e.ncu-rep", "mojo_gtx1660ti_tiny_grids.ncu-rep"):
        kernel = kernels_of(recorded(name))[0]
        basic = [name for name in kernel.metrics if not any(name in parts for parts in kernel.breakdowns.values())]
        assert passes(basic) == pytest.approx(kernel.metrics["profiler__replayer_passes"], abs=4)
    full = kernels_of(recorded("panjd_a100_cutlass_gemm.ncu-rep"))[0]
    assert passes((), full=True) >= full.metrics["profiler__replayer_passes"]
    assert passes(metrics_for(["waves", "sm_count"])) == 0
    assert passes(metrics_for(LIMITER)) < passes(metrics_for([*LIMITER, *STALL_NEEDS])) < passes((), full=True)


def test_the_command_is_the_narrowest():
    words = command("train.py", report="out.ncu-rep", kernels="gemm", skip=5, launches=2, needs=["duration", "waves"])
    text = " ".join(words)
    assert words[0] == "ncu" and words[-2:] == (sys.executable, "train.py")
    for part in (
        "--target-processes application-only",
        "--replay-mode kernel",
        "--kernel-name regex:gemm",
        "--launch-skip 5",
        "--launch-count 2",
        "gpu__time_duration.sum,launch__waves_per_multiprocessor",
        "--export out.ncu-rep --force-overwrite",
    ):
        assert part in text
    assert "--set" not in text and "--section" not in text
    assert command(["julia", "a.jl"], report="r", sections=("Occupancy",))[-2:] == ("julia", "a.jl")
    assert "--section Occupancy" in " ".join(command("a.py", report="r", sections=("Occupancy",)))
    assert "--set full" in " ".join(command("a.py", report="r", full=True, launches=3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"full": True, "launches": 10}, "full set replays"),
        ({"launches": 0}, "launches=0"),
        ({"skip": -1}, "skip=-1"),
        ({"kernels": "gemm("}, "no regular expression"),
        ({"replay": "kernels"}, "no replay mode"),
        ({"sections": ("a b",)}, "sections="),
        ({"needs": ("speed",)}, "no need is called 'speed'"),
    ],
)
def test_what_would_run_for_hours_or_not_at_all_is_refused(options, message, tmp_path):
    with pytest.raises(CounterError, match=message) as caught:
        command("a.py", report="r", **options)
    assert caught.value.mend
    with pytest.raises(CounterError, match=message):
        collect("a.py", folder=tmp_path, environ={"PATH": ""}, proc=Path("/none"), **options)


def test_newer_gpus_are_asked_by_their_own_names():
    asked = {
        at: metrics_for(["tensor_percent", "dram_read_bytes"], at) for at in (None, (8, 0), (9, 0), (10, 0), (12, 0))
    }
    assert asked[None] == asked[(8, 0)] == asked[(9, 0)]
    assert asked[(8, 0)] == (
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
        "dram__bytes_read.sum",
    )
    assert asked[(10, 0)][0].startswith(("sm__pipe_tc", "sm__pipe_tensor_subpipe"))
    assert asked[(12, 0)][1] == "dram__bytes_op_read.sum"
    assert all(set(metrics_for([need])) <= set(NEEDS[need]) for need in (*LIMITER, *ROOFLINE, *STALL_NEEDS))


def test_nothing_is_left_of_a_run(machine, script, tmp_path):
    run(machine, script, tmp_path, deadline=60)
    assert sorted(os.listdir(tmp_path / "out")) == ["report.csv", "report.log", "report.ncu-rep"]
