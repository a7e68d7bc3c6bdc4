"""Targets: what a run is made for, read from `targets/NAME.yaml` into a frozen dataclass."""

import difflib
import re
from dataclasses import dataclass, fields
from pathlib import Path
from types import UnionType
from typing import get_args, get_origin, get_type_hints

import yaml

from helpers.errors import CourseError
from helpers.hardware.capabilities import Capabilities

FOLDER = Path(__file__).parent / "targets"
PREFERENCE = ("cuda-4", "cuda-1", "mps", "vulkan", "cpu")
REQUIREMENT = re.compile(r"(?P<name>[a-z_]+)>=(?P<count>\d+)")


class TargetError(CourseError):
    """A target that does not exist, is written wrongly, or needs what this machine lacks."""


@dataclass(frozen=True)
class Sizes:
    """Problem sizes that fit the target.

    preset: training preset. steps: optimizer steps of a lesson's run. matmul: rows and columns of
    the edge matmul. roof_gemm: rows and columns of the GEMM that measures the compute roof.
    roof_triad_mib: MiB of each array of the bandwidth roof.
    """

    preset: str
    steps: int
    matmul: int
    roof_gemm: int
    roof_triad_mib: int


@dataclass(frozen=True)
class Target:
    """One kind of machine, and how the course runs there.

    name: the file's name. title: one line for people. device: where the training ranks compute
    (`cpu`, `cuda`). lesson_device: where single-process cells compute (`cpu`, `cuda`, `mps`).
    backend: torch.distributed backend. ranks: processes of a training lesson. dtype: compute
    dtype (`fp32`, `bf16`). sizes: see `Sizes`. requires and optional: capability counts such as
    `cuda>=1`; without an optional one the lesson shows a stand-in, stamped. timeout_s: seconds a
    notebook may take, by id (`training/01_…`) or `default`.
    """

    name: str
    title: str
    device: str
    lesson_device: str
    backend: str
    ranks: int
    dtype: str
    sizes: Sizes
    requires: tuple[str, ...]
    optional: tuple[str, ...]
    timeout_s: dict[str, int]

    def timeout(self, notebook: str) -> int:
        """Seconds that `notebook` (an id such as `training/03_fully_shard`) may take."""
        return self.timeout_s.get(notebook, self.timeout_s["default"])

    def unmet(self, machine: Capabilities) -> tuple[str, ...]:
        """The requirements that `machine` does not meet, each as `cuda>=4 (this machine has 0)`."""
        return tuple(
            f"{requirement} (this machine has {machine.count(name)})"
            for requirement in self.requires
            for name, count in [_parse_requirement(requirement)]
            if machine.count(name) < count
        )


def target_names() -> tuple[str, ...]:
    """The names of all targets, the most demanding first."""
    return PREFERENCE


def load_target(name: str) -> Target:
    """Read `targets/NAME.yaml`.

    Raises `TargetError` when there is no such target, or its file has an unknown or missing key, a
    value of the wrong type, or a requirement that is not `capability>=count`.
    """
    path = FOLDER / f"{name}.yaml"
    if name not in PREFERENCE or not path.is_file():
        near = difflib.get_close_matches(str(name), PREFERENCE, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise TargetError(f"there is no target {name!r}", mend=f"{hint}the targets are {', '.join(PREFERENCE)}")
    return read_target(path)


def read_target(path: Path) -> Target:
    """Read one target file; errors as in `load_target`, with the file and key named."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise TargetError(f"not readable as YAML: {error}", where=str(path)) from None
    if not isinstance(content, dict) or set(content) != {"target", "machine"}:
        raise TargetError(
            f"the top level must be the two keys target and machine, not {content!r:.80}",
            where=str(path),
            mend="see targets/cpu.yaml",
        )
    if content["target"] != path.stem:
        raise TargetError(f"target is {content['target']!r}", where=str(path), mend=f"write {path.stem!r}")
    if not isinstance(content["machine"], dict):
        raise TargetError("machine must be a mapping", where=f"{path}: machine", mend="see targets/cpu.yaml")
    target = _build(Target, {"name": path.stem} | content["machine"], str(path))
    for requirement in target.requires + target.optional:
        _parse_requirement(requirement, str(path))
    if "default" not in target.timeout_s:
        raise TargetError("timeout_s has no default", where=str(path), mend="add default: 300")
    return target


def detect_target(machine: Capabilities) -> str:
    """The most demanding target that `machine` meets; `cpu` always is one."""
    return next(name for name in PREFERENCE if not load_target(name).unmet(machine))


def _parse_requirement(text: str, where: str = "") -> tuple[str, int]:
    known = [field.name for field in fields(Capabilities)]
    match = REQUIREMENT.fullmatch(text)
    if match is None or match["name"] not in known:
        raise TargetError(
            f"{text!r} is not a requirement",
            where=where,
            mend=f"write NAME>=COUNT with a NAME of {', '.join(known)}",
        )
    return match["name"], int(match["count"])


def _build(kind: type, values: dict, where: str):
    """Build a frozen dataclass from YAML values, refusing unknown, missing and mistyped ones."""
    hints = get_type_hints(kind)
    for key in values:
        if key not in hints:
            near = difflib.get_close_matches(str(key), list(hints), n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the keys are {', '.join(hints)}"
            raise TargetError(f"unknown key {key!r}", where=where, mend=hint)
    missing = [key for key in hints if key not in values]
    if missing:
        raise TargetError(f"missing key {missing[0]!r}", where=where, mend="see targets/cpu.yaml")
    return kind(**{key: _convert(hints[key], values[key], f"{where}: {key}") for key in hints})


def _convert(hint, value, where: str):
    if hint is Sizes and isinstance(value, dict):
        return _build(Sizes, value, where)
    if get_origin(hint) is tuple and isinstance(value, list):
        return tuple(_convert(get_args(hint)[0], item, where) for item in value)
    if get_origin(hint) is dict and isinstance(value, dict):
        kind = get_args(hint)[1]
        return {str(key): _convert(kind, item, f"{where}.{key}") for key, item in value.items()}
    if not isinstance(hint, UnionType) and hint in (str, int) and type(value) is hint:
        return value
    name = getattr(hint, "__name__", str(hint))
    raise TargetError(
        f"{value!r} is a {type(value).__name__}, but must be {name}",
        where=where,
        mend="quote words, and write numbers without quotes",
    )
