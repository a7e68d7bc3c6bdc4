"""The course's shaders: GLSL sources with the SPIR-V that was compiled from them beside it."""

from pathlib import Path

from helpers.edge.spirv import compile_glsl, validate
from helpers.errors import CourseError

FOLDER = Path(__file__).parent


class ShaderError(CourseError):
    """A shader that does not exist."""


def names() -> tuple[str, ...]:
    """The names of all shaders, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.comp")))


def glsl(name: str) -> str:
    """The GLSL source of a shader."""
    return _path(name, "comp").read_text(encoding="utf-8")


def spirv(name: str) -> bytes:
    """The committed SPIR-V of a shader."""
    return _path(name, "spv").read_bytes()


def regenerate() -> tuple[str, ...]:
    """Compile every shader with the installed compiler and write what changed; the names of those.

    For a maintainer who edited a source; `tests/edge/test_shaders_regenerate.py` finds what was forgotten.
    """
    changed = []
    for name in names():
        module, path = compile_glsl(glsl(name)), FOLDER / f"{name}.spv"
        validate(module)
        if not path.is_file() or path.read_bytes() != module:
            path.write_bytes(module)
            changed.append(name)
    return tuple(changed)


def _path(name: str, suffix: str) -> Path:
    if name not in names():
        raise ShaderError(f"there is no shader {name!r}", mend=f"the shaders are {', '.join(names())}")
    return FOLDER / f"{name}.{suffix}"
