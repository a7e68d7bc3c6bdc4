"""pyproject.toml, constraints.txt and environment.yml say the same, and the environment obeys."""

import tomllib
from importlib import metadata
from itertools import chain
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
DECLARED = [Requirement(text) for text in [*PROJECT["dependencies"], *chain(*EXTRAS.values())]]
PINS = {
    canonicalize_name(line.partition("==")[0]): line.partition("==")[2]
    for line in (ROOT / "constraints.txt").read_text().splitlines()
}


@pytest.mark.parametrize("requirement", DECLARED, ids=str)
def test_every_dependency_is_pinned_within_its_range(requirement):
    pin = PINS[canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(pin)


@pytest.mark.parametrize("requirement", [Requirement(text) for text in PROJECT["dependencies"]], ids=str)
def test_the_environment_is_what_was_pinned(requirement):
    installed = Version(metadata.version(requirement.name)).public
    assert installed == PINS[canonicalize_name(requirement.name)], "run make test: it installs the pins"


def test_every_constraint_is_one_exact_version():
    assert all(Version(version).public == version for version in PINS.values())
    assert len(PINS) == len((ROOT / "constraints.txt").read_text().splitlines())


def test_conda_installs_the_same_through_pip():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    *plain, pip = environment["dependencies"]
    python = next(item for item in plain if item.startswith("python=")).partition("=")[2]
    assert plain == [f"python={python}", "pip"], "packages come from pip alone"
    assert pip == {"pip": ["--constraint constraints.txt", "--editable .[test]"]}
    from packaging.specifiers import SpecifierSet

    assert SpecifierSet(PROJECT["requires-python"]).contains(python)
