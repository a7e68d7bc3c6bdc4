"""The Vulkan drivers of this machine, and those that it could have: one test, several drivers.

A driver is chosen by its manifest, a JSON file that names its library. Besides those that the
system lists, the course knows two: SwiftShader, which lies inside Debian's browser without being
registered, and the newer lavapipe that tools/newer_mesa.sh fetches, which has cooperative matrix.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from helpers.edge.vulkan.loader import NoVulkan

PROJECT = Path(__file__).parents[3]
NEWER_MESA = PROJECT / ".cache" / "mesa"
PYTHON_VARIABLE = "COURSE_PYTHON"  # which interpreter the launcher of newer Mesa starts
MESA_SCRIPT = "tools/newer_mesa.sh"
SWIFTSHADER = (
    Path("/usr/lib/chromium/libvk_swiftshader.so"),
    Path("/usr/lib/chromium-browser/libvk_swiftshader.so"),
)
CHOSEN = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")


@dataclass(frozen=True)
class Driver:
    """One driver. name: `lavapipe`, `swiftshader`, or its manifest's name. manifest: the JSON file.

    why_not: why it cannot be used here, "" when it can. python: how to start a Python that can load
    it; this program's own Python can (`in_process`) unless the driver needs a newer C library.
    """

    name: str
    manifest: Path | None
    why_not: str = ""
    python: tuple[str, ...] = field(default_factory=lambda: (sys.executable,))

    @property
    def in_process(self) -> bool:
        """Whether a device of it can be opened in this program: `open_device(driver=…)`."""
        return not self.why_not and self.python == (sys.executable,)

    @property
    def environment(self) -> dict[str, str]:
        """The variables under which the loader takes this driver and no other."""
        if not self.manifest:
            return {}
        return dict.fromkeys(CHOSEN, str(self.manifest)) | {PYTHON_VARIABLE: sys.executable}

    def run(self, program: str, seconds: float = 120, **environment: str) -> subprocess.CompletedProcess:
        """Run a Python `program` in a child that loads this driver and no other; its output comes as text.

        environment: further variables, such as `LP_NATIVE_VECTOR_WIDTH` (with `MESA_SHADER_CACHE_DISABLE`:
        the cache on disk does not tell widths apart). Raises `NoVulkan` with the
        reason when the driver is not here.
        """
        if self.why_not:
            raise NoVulkan(f"the driver {self.name} cannot be loaded", mend=self.why_not)
        return subprocess.run(
            [*self.python, "-c", program],
            env=os.environ | self.environment | environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )


def drivers() -> tuple[Driver, ...]:
    """Every driver that the loader would take, and the known ones that are not here, with the reason."""
    found = [Driver(_name(path), path, _why_not_loadable(path)) for path in _manifests()]
    names = {driver.name for driver in found}
    if "lavapipe" not in names:
        found.append(Driver("lavapipe", None, "no lavapipe: apt-get install mesa-vulkan-drivers"))
    if "swiftshader" not in names:
        found.append(swiftshader())
    return (*found, newer_lavapipe())


def driver(name: str) -> Driver:
    """The driver of that name; one with a reason in `why_not` when it is not here."""
    named = {found.name: found for found in drivers()}
    return named.get(name) or Driver(name, None, f"no driver {name!r} here; there: {', '.join(named)}")


def swiftshader() -> Driver:
    """SwiftShader of Debian's browser, with a manifest in a temporary folder."""
    for library in SWIFTSHADER:
        if library.is_file():
            return Driver("swiftshader", _write_manifest(library))
    return Driver("swiftshader", None, "no SwiftShader: apt-get install chromium-common, which holds it")


def newer_lavapipe(folder: Path = NEWER_MESA) -> Driver:
    """lavapipe with cooperative matrix, in a private copy of newer Debian packages.

    It needs the C library of its own packages, so it runs in a child: `driver.run(program)`.
    """
    manifest, python = folder / "root/usr/share/vulkan/icd.d/lvp_icd.json", folder / "python"
    if not manifest.is_file() or not os.access(python, os.X_OK):
        return Driver("lavapipe-newer", None, f"no Mesa with cooperative matrix: run {MESA_SCRIPT} (Debian only)")
    return Driver("lavapipe-newer", manifest, python=(str(python),))


def _manifests() -> Iterator[Path]:
    """The manifests in the loader's order; Vulkan loader documentation, "Driver Discovery"."""
    for variable in CHOSEN:
        if asked := os.environ.get(variable):
            yield from (Path(part) for part in asked.split(os.pathsep) if part)
            return
    home = Path(os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share"))
    system = ("/etc/xdg", "/etc", "/usr/local/etc", "/usr/local/share", "/usr/share", "/opt/homebrew/share")
    for folder in (home, *map(Path, system)):
        yield from sorted((folder / "vulkan/icd.d").glob("*.json"))


def _name(manifest: Path) -> str:
    known = {"lvp_icd": "lavapipe", "vk_swiftshader_icd": "swiftshader", "swiftshader": "swiftshader"}
    stem = manifest.stem.split(".")[0]
    return known.get(stem, stem.removesuffix("_icd"))


def _why_not_loadable(manifest: Path) -> str:
    try:
        library = json.loads(manifest.read_text(encoding="utf-8"))["ICD"]["library_path"]
    except OSError:
        return f"there is no {manifest}"
    except (ValueError, KeyError, TypeError):
        return f"{manifest} is not a driver's manifest"
    path = manifest.parent / library
    return "" if "/" not in library or path.exists() else f"{manifest} names {library}, which is not there"


@cache
def _write_manifest(library: Path) -> Path:
    content = {"file_format_version": "1.0.0", "ICD": {"library_path": str(library), "api_version": "1.3.0"}}
    path = Path(_folder().name, "vk_swiftshader_icd.json")
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


@cache
def _folder() -> tempfile.TemporaryDirectory:
    """A folder that lasts as long as the program."""
    return tempfile.TemporaryDirectory(prefix="vulkan-driver-")
