"""`helpers doctor`: one line per capability of this machine, with the mend for what is missing."""

import argparse
import json
import platform
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path

from helpers.hardware import Capabilities, detect_target, load_target, probe
from helpers.hardware.capabilities import usable_cores

ROOT = Path(__file__).parents[2]
APT_VULKAN = "apt-get install libvulkan1 mesa-vulkan-drivers vulkan-validationlayers"
ASK_DEVICES = """
from helpers.edge.vulkan import devices
for device in devices():
    print(f"{device.driver}, cooperative matrix: {', '.join(map(str, device.cooperative_matrix)) or 'none'}")
"""


class Status(StrEnum):
    """OK: works. SKIP: not here, and the course shows a stand-in. FAIL: must be mended."""

    OK = "OK"
    SKIP = "SKIP"
    FAIL = "FAIL"


@dataclass(frozen=True)
class Capability:
    """One line of the doctor: what was looked at, what was found, and what to do about it."""

    name: str
    status: Status
    found: str
    mend: str = ""

    def __str__(self) -> str:
        line = f"{'[' + self.status + ']':<7}{self.name:<18}{self.found}"
        return f"{line}\n{'':<25}-> {self.mend}" if self.mend else line


def examine_machine() -> tuple[Capability, ...]:
    """Look at everything the course may use. Starts two gloo ranks; no lasting effect.

    An examination that itself raises is a FAIL line with the exception, never a crash.
    """
    return tuple(line for look in LOOKS for line in _guarded(look))


def machine() -> Capabilities:
    """This machine's capability counts, its Vulkan devices included."""
    from helpers.edge.vulkan import devices

    return probe().with_vulkan(tuple(device.kind for device in devices()))


def _guarded(look: Callable[[], Iterator[Capability]]) -> Iterator[Capability]:
    try:
        yield from look()
    except Exception as error:
        name = look.__name__.strip("_").replace("_", " ")
        yield Capability(name, Status.FAIL, f"{type(error).__name__}: {error}", "please report this line")


def _python() -> Iterator[Capability]:
    yield Capability("Python", Status.OK, f"{platform.python_version()} on {platform.system()} {platform.machine()}")


def _packages() -> Iterator[Capability]:
    """Compare what is installed with constraints.txt: torch on a line of its own."""
    pins = read_pins(ROOT / "constraints.txt")
    installed = {name: _version(name) for name in pins}
    torch = (installed.get("torch") or "").partition("+")[0]
    if not torch:
        yield Capability("torch", Status.FAIL, "not installed", "run make course")
    elif torch == pins["torch"]:
        yield Capability("torch", Status.OK, f"{installed['torch']}, the version that was tested")
    else:
        yield Capability("torch", Status.OK, f"{installed['torch']}; tested with {pins['torch']}")
    needed = {name for name in direct_dependencies() if name != "torch"}
    missing = sorted(name for name in needed if not installed.get(name))
    others = sorted(name for name in needed - set(missing) if installed[name] != pins[name])
    if missing:
        yield Capability("packages", Status.FAIL, f"not installed: {', '.join(missing)}", "run make course")
    elif others:
        yield Capability("packages", Status.OK, f"other than tested: {', '.join(others)}")
    else:
        yield Capability("packages", Status.OK, f"{len(needed)} direct dependencies, all as tested")


def read_pins(path: Path) -> dict[str, str]:
    """The `name==version` lines of a constraints file as a dict, names as pip normalises them."""
    pins = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        name, separator, version = line.partition("==")
        if separator:
            pins[_normal(name)] = version.strip()
    return pins


def direct_dependencies() -> tuple[str, ...]:
    """The names of the course's own dependencies, from the installed package's metadata."""
    requirements = metadata.requires("shards-to-shaders") or []
    plain = [text for text in requirements if "extra ==" not in text]
    return tuple(_normal(text.partition(">")[0].partition(";")[0].partition("=")[0]) for text in plain)


def _normal(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(".", "-")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> Iterator[Capability]:
    cores, memory = usable_cores(), probe().memory_gib
    yield Capability("cores", Status.OK, f"{cores} usable, so 4 ranks compute with {max(1, cores // 4)} thread each")
    enough = memory >= 4
    mend = "" if enough else "close other programs: four ranks need about 3 GiB"
    yield Capability("memory", Status.OK if enough else Status.FAIL, f"{memory} GiB", mend)


def _disk() -> Iterator[Capability]:
    free = shutil.disk_usage(ROOT).free / 2**30
    if free < 0.5:
        yield Capability(
            "disk", Status.FAIL, f"{free:.1f} GiB free", "free at least 0.5 GiB: a run writes its pages here"
        )
    else:
        yield Capability("disk", Status.OK, f"{free:.0f} GiB free")


def _free_port() -> Iterator[Capability]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
    yield Capability("free port", Status.OK, "the loopback address hands out ports")


def _ranks() -> Iterator[Capability]:
    """A real all-reduce over two gloo processes."""
    from helpers.training.ranks import Ranks

    with Ranks(2) as ranks:
        sums = ranks.run(_sum_over_ranks)
    if list(sums) == [3.0, 3.0]:
        yield Capability("gloo ranks", Status.OK, "two processes agreed on an all-reduce over loopback")
    else:
        yield Capability("gloo ranks", Status.FAIL, f"all-reduce gave {sums}, not 3.0 on both", "report this line")


def _sum_over_ranks() -> float:
    import torch
    import torch.distributed as dist

    value = torch.tensor(float(dist.get_rank() + 1))
    dist.all_reduce(value)
    return value.item()


def _cuda() -> Iterator[Capability]:
    import torch

    count = torch.cuda.device_count()
    if not count:
        yield Capability("CUDA", Status.SKIP, "no device: ranks are gloo processes, counters are recorded")
    for index in range(count):
        yield Capability(f"CUDA device {index}", Status.OK, torch.cuda.get_device_name(index))


def _mps() -> Iterator[Capability]:
    import torch

    if torch.backends.mps.is_available():
        yield Capability("MPS", Status.OK, "an Apple GPU that torch can use")
    else:
        yield Capability("MPS", Status.SKIP, "no Apple GPU: Metal kernels run as their Vulkan twins")


def _vulkan() -> Iterator[Capability]:
    from helpers.edge.vulkan import devices, why_none

    found = devices()
    if not found:
        yield Capability("Vulkan", Status.SKIP, why_none(), f"for live shaders: {APT_VULKAN}")
        return
    for index, device in enumerate(found):
        shapes = ", ".join(str(shape) for shape in device.cooperative_matrix) or "none"
        text = (
            f"{device.name} ({device.kind}, {device.driver}), subgroup {device.subgroup_size}, "
            f"cooperative matrix: {shapes}"
        )
        yield Capability(f"Vulkan device {index}", Status.OK, text)
    if any(device.validation for device in found):
        yield Capability("Vulkan validation", Status.OK, "the Khronos layer checks every call")
    else:
        mend = "apt-get install vulkan-validationlayers"
        yield Capability("Vulkan validation", Status.SKIP, "the Khronos layer is not installed", mend)


def _newer_mesa() -> Iterator[Capability]:
    """The second lavapipe, asked in a child process: it needs a C library of its own."""
    from helpers.edge.vulkan.drivers import MESA_SCRIPT, newer_lavapipe

    driver = newer_lavapipe()
    if driver.why_not:
        yield Capability("newer Mesa", Status.SKIP, "not fetched: matrix units are simulated", driver.why_not)
        return
    done = driver.run(ASK_DEVICES)
    if done.returncode or not done.stdout.strip():
        reason = (done.stderr.strip().splitlines() or ["it lists no device"])[-1]
        mend = f"delete {Path(driver.python[0]).parent} and run {MESA_SCRIPT}"
        yield Capability("newer Mesa", Status.SKIP, f"does not load: {reason}", mend)
        return
    yield Capability("newer Mesa", Status.OK, done.stdout.strip())


def _counters() -> Iterator[Capability]:
    """Whether counters can be collected, as the check before each collection finds it."""
    from helpers.profiling.counters.preflight import Level, preflight

    found = preflight()
    stops = [finding for finding in found.findings if finding.level is Level.STOP]
    if not found.driver:
        yield Capability("GPU counters", Status.SKIP, "no NVIDIA driver: lessons show recorded kernels")
    elif stops:
        yield Capability(
            "GPU counters", Status.SKIP, f"{stops[0].what}: lessons show recorded kernels", stops[0].mend
        )
    else:
        yield Capability("GPU counters", Status.OK, "; ".join(finding.what for finding in found.findings))


def _shader_tools() -> Iterator[Capability]:
    from helpers.edge import spirv

    yield Capability("shader compiler", Status.OK, spirv.tool_versions())


def _notebooks() -> Iterator[Capability]:
    versions = ", ".join(f"{name} {_version(name)}" for name in ("jupyterlab", "ipywidgets", "papermill", "nbval"))
    yield Capability("notebooks", Status.OK, versions)


LOOKS = (
    _python,
    _packages,
    _processor,
    _disk,
    _free_port,
    _ranks,
    _cuda,
    _mps,
    _vulkan,
    _newer_mesa,
    _shader_tools,
    _counters,
    _notebooks,
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `helpers doctor`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def execute(args: argparse.Namespace) -> int:
    """Print the examination; 0 when nothing failed, else 1."""
    lines = examine_machine()
    target = load_target(detect_target(machine()))
    if args.json:
        found = {"target": target.name, "capabilities": [asdict(line) for line in lines]}
        print(json.dumps(found, indent=1, ensure_ascii=False))
    else:
        print(*lines, "", f"target: {target.name} · {target.title}", sep="\n")
    return int(any(line.status is Status.FAIL for line in lines))
