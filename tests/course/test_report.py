import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from helpers import cli
from helpers.course.outcome import Outcome, State, evidence, judge
from helpers.course.report import (
    Provenance,
    ReportError,
    Summary,
    counts,
    junit,
    matrix_text,
    merge,
    read,
    write_summary,
)

RUN = Provenance("r1", "2026-12-01T00:00:00+00:00", "a" * 40, False, "3.11", "Linux x86_64", {"torch": "2"}, ("CPU",))
GOOD = Outcome(
    "training/01", "Shards", "cpu", State.PASS, seconds=2.5, peak_bytes=2**30, mode="live", how="everywhere"
)
BAD = Outcome(
    "edge/01", "<Shader> & co", "cpu", State.FAIL, why="E: \x1b[31mred\x1b[0m <b>", cell="c-1", page="p.html"
)


def run_in(folder, run, *outcomes):
    write_summary(folder, Summary((run,), outcomes))
    return folder


class Strict(HTMLParser):
    """Collects the tags of a page and insists that each that opens is closed."""

    VOID = frozenset({"meta", "link", "br", "img", "hr", "input"})

    def __init__(self, text):
        super().__init__()
        self.open, self.seen = [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_a_summary_is_read_back_as_it_was_written(tmp_path):
    assert read(run_in(tmp_path, RUN, GOOD, BAD)) == Summary((RUN,), (GOOD, BAD))


def test_the_page_is_well_formed_and_says_everything_in_words(tmp_path):
    text = (run_in(tmp_path, RUN, GOOD, BAD) / "index.html").read_text()
    page = Strict(text)
    assert "&lt;Shader&gt; &amp; co" in text and "<b>" not in text.replace("<body>", "")
    for words in ("✓ pass", "✗ fail", "1 GiB peak", "2.5 s", "a" * 40, "p.html#cell-c-1"):
        assert words in text
    assert any(tag == "meta" and a.get("name") == "viewport" for tag, a in page.seen)
    assert all("scope" in a for tag, a in page.seen if tag == "th")
    assert not [tag for tag, _ in page.seen if tag == "script"]


def test_the_newest_outcome_of_each_notebook_and_target_wins(tmp_path):
    later = replace(RUN, run="r2", date="2026-12-02T00:00:00+00:00", commit="b" * 40)
    one = run_in(tmp_path / "one", RUN, GOOD, BAD)
    two = run_in(
        tmp_path / "two",
        later,
        replace(BAD, state=State.PASS, why="", page=""),
        replace(GOOD, target="cuda-1", page="q.html"),
    )
    for order in ([one, two], [two, one]):
        merged = merge(order, tmp_path / "merged")
        found = {(o.notebook, o.target): o for o in merged.outcomes}
        assert {key: o.state for key, o in found.items()} == {
            ("training/01", "cpu"): State.PASS,
            ("edge/01", "cpu"): State.PASS,
            ("training/01", "cuda-1"): State.PASS,
        }
        assert found["training/01", "cuda-1"].page == "../two/q.html"
    out = tmp_path / "merged"
    assert cli.main(["report", str(one), str(two / "summary.json"), "--out", str(out)]) == 0
    text = (out / "index.html").read_text()
    assert "2 different commits" in text and 'href="../two/q.html"' in text


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"version": 1}',
        '{"version": 99, "runs": [], "outcomes": []}',
        '{"version": 1, "runs": [{"run": "x"}], "outcomes": []}',
        '{"version": 1, "runs": [], "outcomes": [{"state": "fine", "quantities": []}]}',
    ],
)
def test_a_broken_summary_is_named(tmp_path, content):
    (tmp_path / "summary.json").write_text(content)
    with pytest.raises(ReportError) as caught:
        read(tmp_path)
    assert "summary.json" in caught.value.where and caught.value.mend


def test_an_absent_run_is_named(tmp_path):
    with pytest.raises(ReportError):
        read(tmp_path / "nowhere")


def test_a_folder_without_a_summary_is_skipped_with_a_line(tmp_path, capsys):
    good, empty = run_in(tmp_path / "good", RUN, GOOD), tmp_path / "empty"
    empty.mkdir()
    assert cli.main(["report", str(empty), str(good), "--out", str(tmp_path / "out")]) == 0
    assert f"skipped {empty}: it has no summary.json" in capsys.readouterr().out
    assert read(tmp_path / "out").outcomes == tuple(replace(o, date=RUN.date) for o in (GOOD,))
    assert cli.main(["report", str(empty), "--out", str(tmp_path / "none")]) == 2
    assert "no finished run in" in capsys.readouterr().err and not (tmp_path / "none").exists()
    assert cli.main(["report", str(good), str(tmp_path / "typo"), "--out", str(tmp_path / "none")]) == 2
    assert "typo" in capsys.readouterr().err


def test_an_outcome_in_a_merged_report_is_as_old_as_its_own_run(tmp_path):
    """The first machine's page is older than the third's, though a later run was merged with it."""
    days = {day: f"2026-12-{day:02}T00:00:00+00:00" for day in (1, 3, 5)}
    old = run_in(tmp_path / "old", RUN, replace(GOOD, date=days[1]))
    other = run_in(tmp_path / "other", replace(RUN, run="r5", date=days[5]), replace(BAD, date=days[5]))
    write_summary(tmp_path / "both", merge([old, other], tmp_path / "both"))
    fixed = replace(GOOD, date=days[3], seconds=9.0)
    newer = run_in(tmp_path / "newer", replace(RUN, run="r3", date=days[3]), fixed)
    merged = merge([newer, tmp_path / "both", old], tmp_path / "all")
    assert {(o.notebook, o.seconds) for o in merged.outcomes} == {("training/01", 9.0), ("edge/01", 0.0)}
    assert [run.run for run in merged.runs] == ["r1", "r3", "r5"]


def test_what_was_reused_says_so_everywhere(tmp_path):
    first = replace(GOOD, date="2026-12-01T23:10:59+00:00", page="cpu/x.html", carried_from=str(tmp_path / "x.html"))
    again = first.carried_over(tmp_path / "second").carried_over(tmp_path / "third")
    assert again.reused == first.date < again.date and again.page == "../x.html"
    words = "reused from 2026-12-01 23:10 UTC"
    assert words in again.line() and "reused" not in first.line()
    assert "✓ pass 2 s, reused" in matrix_text((again,))
    text = (run_in(tmp_path / "third", RUN, again) / "index.html").read_text()
    assert words in text and read(tmp_path / "third").outcomes == (again,)


def test_a_summary_of_an_earlier_version_of_the_course_is_read(tmp_path):
    run_in(tmp_path, RUN, GOOD)
    content = json.loads((tmp_path / "summary.json").read_text())
    for name in ("date", "reused"):
        del content["outcomes"][0][name]
    (tmp_path / "summary.json").write_text(json.dumps(content))
    assert read(tmp_path).outcomes == (GOOD,)


def test_junit_has_a_suite_a_target_and_no_control_characters():
    text = junit((GOOD, BAD, replace(GOOD, target="mps", state=State.SKIPPED, why="needs mps")))
    suites = {s.get("name"): s for s in ElementTree.fromstring(text.encode())}
    assert suites["cpu"].get("failures") == "1" and suites["mps"].get("skipped") == "1"
    assert "\x1b" not in text and "red" in text


def test_the_matrix_lines_up():
    lines = matrix_text((GOOD, BAD, replace(GOOD, target="cuda-1"))).splitlines()
    assert [line.index("✓" if "✓" in line else "✗") for line in lines[1:3]] == [lines[0].index("cpu")] * 2
    assert lines[-1] == counts((GOOD, BAD, GOOD)) == "2 pass · 1 fail"


def test_evidence_needs_this_runs_token_in_the_last_cell():
    import nbformat

    def book(token):
        sentinel = nbformat.v4.new_output("display_data", data={}, metadata={"course_sentinel": token})
        cells = [nbformat.v4.new_code_cell("f()", outputs=[sentinel], execution_count=1)]
        return nbformat.v4.new_notebook(cells=cells)

    assert evidence(book("t1"), "t1").sentinel and not evidence(book("t1"), "t2").sentinel
    assert judge(None, evidence(book("t1"), "t1"))[0] is State.VACUOUS
    assert judge({"state": "timeout", "why": "w", "cell": ""}, evidence(book("t1"), "t1")) == (State.TIMEOUT, "w", "")
    assert re.search("sentinel", judge(None, evidence(book("t1"), "t2"))[1])
    assert json.loads(json.dumps(GOOD.to_json()))["state"] == "pass"
