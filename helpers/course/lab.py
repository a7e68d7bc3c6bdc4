"""`helpers lab`: JupyterLab, opened on the first page of the course."""

import argparse
import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FIRST_PAGE = "notebooks/00_start_here.ipynb"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `helpers lab`; what follows `--` goes to JupyterLab."""
    parser.add_argument("jupyter", nargs="*", metavar="-- OPTION", help="options for JupyterLab, as --no-browser")


def command(options: list[str], root: Path = ROOT) -> list[str]:
    """The command line that starts JupyterLab with `root` as its folder and `FIRST_PAGE` open."""
    as_root = ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    start = [f"--ServerApp.root_dir={root}", f"--LabApp.default_url=/lab/tree/{FIRST_PAGE}"]
    return [sys.executable, "-m", "jupyterlab", *start, *as_root, *options]


def execute(args: argparse.Namespace) -> int:
    """Replace this process by JupyterLab; returns only if that fails."""
    os.execv(sys.executable, command(args.jupyter))
