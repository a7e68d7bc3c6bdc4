import base64
import html
import json
import math
import re

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from matplotlib import pyplot

from helpers.measure import Quantity, measured, measured_on, predicted, recorded, show, show_fig, show_table
from helpers.measure.figures import FigureError
from helpers.measure.show import METADATA_KEY


@pytest.fixture
def shell():
    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


def test_show_prints_and_carries_the_quantity(shell):
    with capture_output() as captured:
        show("step time", measured(0.25, "s"))
    [output] = captured.outputs
    assert output.data == {"text/plain": "step time: 250 ms [measured]"}
    assert output.metadata[METADATA_KEY] == [
        {"name": "step time", "value": 0.25, "unit": "s", "origin": "measured", "source": ""}
    ]


def test_a_table_names_each_quantity_by_row_and_column(shell):
    with capture_output() as captured:
        show_table(["rank", "bytes", "note"], [[0, predicted(512, "B"), "a<b"], [1, predicted(0, "B"), "empty"]])
    [output] = captured.outputs
    assert [entry["name"] for entry in output.metadata[METADATA_KEY]] == ["0 · bytes", "1 · bytes"]
    assert "a&lt;b" in output.data["text/html"] and 'scope="col"' in output.data["text/html"]
    columns = [line.index("512") for line in output.data["text/plain"].splitlines() if "512" in line]
    assert columns == [output.data["text/plain"].splitlines()[0].index("bytes")]


def test_outside_a_notebook_show_prints(capsys):
    InteractiveShell.clear_instance()
    show("step time", measured(0.25, "s"))
    assert capsys.readouterr().out == "step time: 250 ms [measured]\n"


def test_a_figure_carries_its_alternative_text_and_is_closed(shell):
    figure, axes = pyplot.subplots()
    axes.plot([1, 2])
    alt = 'Loss falls from 5 to 3 & "flattens" after step 20'
    with capture_output() as captured:
        show_fig(figure, alt)
    [output] = captured.outputs
    tag = output.data["text/html"]
    assert html.unescape(re.search(r'alt="([^"]*)"', tag)[1]) == alt
    assert base64.b64decode(re.search(r'base64,([^"]+)"', tag)[1]).startswith(b"\x89PNG")
    assert not pyplot.fignum_exists(figure.number)


def test_a_stamp_stands_beneath_the_figure_and_in_its_text(shell):
    alt = "Bars of four ranks, of which the last one waits"
    for stamp in (measured_on("<T4> & co"), recorded(1, "s", device="H200", date="2026-10-02", tool="ncu").stamp):
        with capture_output() as captured:
            show_fig(pyplot.figure(), alt, stamp=stamp)
        [output] = captured.outputs
        words = stamp.strip("[]")
        caption = re.search("<figcaption>(.*)</figcaption></figure>$", output.data["text/html"])[1]
        assert html.unescape(caption) == words and "<T4>" not in caption
        assert output.data["text/plain"] == f"[figure, {words}] {alt}" and output.metadata == {"alt": alt}


@pytest.mark.parametrize("stamp", ["H200, 2026-10-02", "measuredly", "on a laptop"])
def test_a_stamp_that_names_no_origin_is_refused(stamp):
    with pytest.raises(FigureError, match="where the numbers come from"):
        show_fig(pyplot.figure(), "Bars of four ranks, of which the last one waits", stamp=stamp)
    pyplot.close("all")


def test_what_is_not_finite_reaches_the_report_as_json(shell):
    with capture_output() as captured:
        show_table(["limit", "gain"], [["none", predicted(math.inf, "×")], ["failed", measured(math.nan, "×")]])
    [output] = captured.outputs
    entries = json.loads(json.dumps(output.metadata[METADATA_KEY], allow_nan=False))
    assert [Quantity.from_json(entry).text for entry in entries] == ["∞ ×", "nan ×"]
    assert "∞ × [predicted]" in output.data["text/plain"]


def test_a_figure_without_a_description_is_refused():
    with pytest.raises(FigureError, match="does not describe"):
        show_fig(pyplot.figure(), "a plot")
    pyplot.close("all")
