import pytest
from matplotlib import pyplot

from helpers.training.cost import Fit
from helpers.training.figures import ledger_figure
from helpers.training.figures_cost import cost_figure


def test_each_collective_has_its_points_and_its_line():
    sizes, line = [10, 1000], Fit(1e-3, 1e6, 0.0)
    figure = cost_figure(sizes, {"all_gather": [1e-3, 2e-3]}, {"all_gather": line})
    points, fitted = figure.axes[0].get_lines()
    assert list(points.get_ydata()) == [1.0, 2.0]
    assert list(fitted.get_ydata()) == pytest.approx([1.01, 2.0])
    assert figure.axes[0].get_xscale() == figure.axes[0].get_yscale() == "log"
    pyplot.close(figure)


def test_the_ledger_is_stacked_without_its_total():
    counts = {("after forward", "activations"): 3 * 2**20, ("after forward", "logits"): 2**20}
    figure = ledger_figure(counts | {("after forward", "total"): 4 * 2**20})
    heights = [bar.get_height() for bar in figure.axes[0].patches]
    assert sorted(heights) == [1.0, 3.0]
    assert [text.get_text() for text in figure.axes[0].texts] == ["4.0"]
    pyplot.close(figure)
