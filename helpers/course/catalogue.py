"""The course's notebooks: what each is called, how long it takes, and what it shows where."""

import re
from dataclasses import dataclass
from pathlib import Path

import nbformat

from helpers.course.files import read_notebook
from helpers.errors import CourseError
from helpers.hardware import Capabilities
from helpers.hardware.targets import REQUIREMENT

ROOT = Path(__file__).parents[2]
KEYS = {"title": str, "minutes": int, "live": str, "otherwise": str, "how": str}
STAND_INS = ("simulated", "recorded")


class CatalogueError(CourseError):
    """A notebook that does not say what it is."""


@dataclass(frozen=True)
class Entry:
    """One notebook, from its metadata `course`.

    id: `training/03_fully_shard`, `solutions/edge/01_saxpy`, `00_start_here`. minutes: to read and
    do. live: the requirement, as `cuda>=2`, under which it runs on the real thing; '' for
    everywhere. otherwise: `simulated` or `recorded`; how: the stand-in in words.
    """

    id: str
    path: Path
    title: str
    minutes: int
    live: str
    otherwise: str
    how: str

    def mode(self, machine: Capabilities) -> tuple[str, str]:
        """(`live`, `simulated` or `recorded`; why) on this machine."""
        if not self.live:
            return "live", "runs the same everywhere"
        match = REQUIREMENT.fullmatch(self.live)
        have = machine.count(match["name"])
        if have >= int(match["count"]):
            return "live", f"{self.live}: this machine has {have}"
        return self.otherwise, f"{self.how} (live needs {self.live}; this machine has {have})"


def entry_of(notebook: nbformat.NotebookNode, identifier: str, path: Path = Path()) -> Entry:
    """Read a notebook's metadata; `CatalogueError` names the key that is missing or wrong."""
    course = notebook.metadata.get("course")
    if not isinstance(course, dict):
        raise CatalogueError("no metadata course", where=identifier, mend=f"give it {', '.join(KEYS)}")
    for key, kind in KEYS.items():
        if type(course.get(key)) is not kind:
            raise CatalogueError(
                f"metadata course.{key} is {course.get(key)!r}",
                where=identifier,
                mend=f"make it a {kind.__name__}",
            )
    match = REQUIREMENT.fullmatch(course["live"])
    if course["live"] and (match is None or match["name"] not in Capabilities.__dataclass_fields__):
        raise CatalogueError(
            f"metadata course.live is {course['live']!r}",
            where=identifier,
            mend="write NAME>=COUNT, as cuda>=2",
        )
    if course["live"] and (course["otherwise"] not in STAND_INS or not course["how"]):
        raise CatalogueError(
            "metadata course does not say what is shown instead",
            where=identifier,
            mend="set otherwise to simulated or recorded, and how to the stand-in in words",
        )
    return Entry(id=identifier, path=path, **{key: course[key] for key in KEYS})


def identifier_of(path: Path, root: Path) -> str:
    """The id of a notebook file: its path without the suffix, lessons without `notebooks/`."""
    return re.sub(r"^notebooks/", "", path.relative_to(root).with_suffix("").as_posix())


def catalogue(root: Path = ROOT, folders: tuple[str, ...] = ("notebooks", "solutions")) -> tuple[Entry, ...]:
    """The entries of all notebooks in `folders` under `root`: the first page, track by track, the capstone.

    Raises `CatalogueError` when there is none or one does not say what it is, `NotebookError` when
    one cannot be read.
    """
    entries = []
    for path in sorted(p for folder in folders for p in (root / folder).rglob("*.ipynb")):
        if ".ipynb_checkpoints" in path.parts:
            continue
        identifier = identifier_of(path, root)
        entries.append(entry_of(read_notebook(path), identifier, path))
    if not entries:
        raise CatalogueError("found no notebooks", where=str(root), mend="run inside a clone of the course")
    return tuple(sorted(entries, key=_order))


def _order(entry: Entry) -> tuple:
    tracks = ("training", "profiling", "edge")
    parts = entry.id.split("/")
    of_no_track = -1 if entry.id.startswith("00") else len(tracks)
    track = next((tracks.index(part) for part in parts if part in tracks), of_no_track)
    return parts[0] == "solutions", track, entry.id
