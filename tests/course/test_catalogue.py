import nbformat
import pytest

from helpers.course.catalogue import CatalogueError, Entry, catalogue, entry_of
from helpers.course.files import NotebookError
from helpers.hardware import Capabilities

COURSE = {"title": "t", "minutes": 5, "live": "cuda>=2", "otherwise": "simulated", "how": "gloo ranks"}


def test_the_course_lists_the_first_page_then_the_tracks_the_capstone_and_the_solutions():
    ids = [entry.id for entry in catalogue()]
    lessons = [name for name in ids if not name.startswith("solutions/")]
    assert (lessons[0], lessons[-1]) == ("00_start_here", "99_one_models_life")
    tracks = [name.split("/")[0] for name in lessons[1:-1]]
    assert tracks == sorted(tracks, key=("training", "profiling", "edge").index)
    assert ids == sorted(ids, key=lambda name: name.startswith("solutions/"))


@pytest.mark.parametrize(
    ("machine", "mode"),
    [(Capabilities(cuda=2), "live"), (Capabilities(cuda=1), "simulated"), (Capabilities(), "simulated")],
)
def test_the_mode_follows_the_machine_and_says_why(machine, mode):
    entry = entry_of(nbformat.v4.new_notebook(metadata={"course": COURSE}), "x")
    found, why = entry.mode(machine)
    assert found == mode and f"this machine has {machine.cuda}" in why
    assert ("gloo ranks" in why) == (mode != "live")


def test_a_lesson_without_a_requirement_is_live_everywhere():
    entry = entry_of(nbformat.v4.new_notebook(metadata={"course": COURSE | {"live": ""}}), "x")
    assert isinstance(entry, Entry) and entry.mode(Capabilities())[0] == "live"


def test_a_folder_without_notebooks_and_a_broken_one_are_named(tmp_path):
    with pytest.raises(CatalogueError, match="no notebooks"):
        catalogue(tmp_path)
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks/x.ipynb").write_text("{}")
    with pytest.raises(NotebookError):
        catalogue(tmp_path)
