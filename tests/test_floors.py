"""No part of `helpers` imports a part above or beside it, and the ground costs no torch import."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "helpers"
GROUND = {"errors", "hardware", "measure", ""}
ALLOWED = {
    "errors": set(),
    "measure": {"errors"},
    "hardware": {"errors", "measure"},
    "training": GROUND,
    "profiling": GROUND,
    "edge": GROUND,
    "course": GROUND | {"training", "profiling", "edge"},
    "cli": GROUND | {"course"},
    "": set(),
}


def part_of(module: str) -> str:
    """`helpers.edge.vulkan` belongs to `edge`; `helpers` itself to ``."""
    return module.partition(".")[2].partition(".")[0]


def imported_parts(tree: ast.AST, package: str):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: -(node.level - 1) or None] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            if module == "helpers":
                yield from ((f"helpers.{alias.name}", node.lineno) for alias in node.names)
            else:
                yield module, node.lineno
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("helpers."):
            yield node.value, node.lineno


def violations(source: str, module: str, package: str) -> list[str]:
    """The arrows of `source` that run up or sideways, as `line: part`."""
    own = part_of(module)
    return [
        f"{line}: {part_of(name)}"
        for name, line in imported_parts(ast.parse(source), package)
        if name.split(".")[0] == "helpers" and part_of(name) not in ALLOWED[own] | {own}
    ]


def modules():
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        module = ".".join(parts[:-1] if is_package else parts)
        yield pytest.param(path, module, module if is_package else module.rpartition(".")[0], id=module)


@pytest.mark.parametrize(("path", "module", "package"), list(modules()))
def test_imports_run_downwards(path, module, package):
    assert violations(path.read_text(encoding="utf-8"), module, package) == []


@pytest.mark.parametrize(
    ("source", "module", "found"),
    [
        ("import helpers.course", "helpers.measure.show", ["1: course"]),
        ("from helpers import edge", "helpers.training.loop", ["1: edge"]),
        ("from helpers.profiling.trace import read", "helpers.edge.spirv", ["1: profiling"]),
        ("def f():\n    from helpers.training import ranks", "helpers.profiling.trace", ["2: training"]),
        ("from ..edge import spirv", "helpers.training.loop", ["1: edge"]),
        (
            "import importlib\nimportlib.import_module('helpers.edge.spirv')",
            "helpers.hardware.probe",
            ["2: edge"],
        ),
        ("from helpers.measure import show", "helpers.edge.spirv", []),
        ("from helpers.edge import spirv", "helpers.course.doctor", []),
        ("from . import quantity", "helpers.measure.show", []),
    ],
)
def test_the_walk_sees_arrows(source, module, found):
    assert violations(source, module, module.rpartition(".")[0]) == found


@pytest.mark.parametrize(
    "module",
    [
        "helpers",
        "helpers.cli",
        "helpers.course",
        "helpers.hardware",
        "helpers.hardware.roofs",
        "helpers.measure",
        "helpers.training",
        "helpers.profiling",
        "helpers.edge",
        "helpers.edge.spirv",
        "helpers.edge.vulkan",
    ],
)
def test_import_costs_no_torch(module):
    program = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
