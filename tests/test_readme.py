"""What the README and CONTRIBUTING name exists: files, make targets, commands."""

import re
from pathlib import Path

import pytest

from helpers.cli import COMMANDS

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", "CONTRIBUTING.md"]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text())
    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_commands_exist(page):
    text = (ROOT / page).read_text()
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:^|`)make ([a-z]+)", text, re.MULTILINE)) <= targets
    assert set(re.findall(r"(?:^|`)helpers ([a-z]+)", text, re.MULTILINE)) <= set(COMMANDS)


def test_every_picture_has_alternative_text():
    pictures = re.findall(r"!\[([^\]]*)\]", (ROOT / "README.md").read_text())
    assert pictures and all(len(words.split()) >= 5 for words in pictures)


def test_ci_runs_what_the_readme_says():
    assert "make test" in (ROOT / ".ci/run").read_text()
