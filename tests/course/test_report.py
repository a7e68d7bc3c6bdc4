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
