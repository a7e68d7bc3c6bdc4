import math

from matplotlib import pyplot

from helpers.training.figures import bars_figure, curves_figure, loss_figure, rows_figure


def test_the_loss_curve_names_its_ends_and_the_uniform_guess():
    figure = loss_figure([5.5, 4.0, 3.25])
    [axes] = figure.axes
    curve, guess = axes.lines[:2]
    assert list(curve.get_ydata()) == [5.5, 4.0, 3.25] and list(curve.get_xdata()) == [1, 2, 3]
    assert list(guess.get_ydata()) == [math.log(256)] * 2
    assert [text.get_text() for text in axes.texts] == ["5.50", "3.25"]
    pyplot.close(figure)


def test_rows_carry_their_rank_as_text():
    figure = rows_figure([(3, 3, 3, 1), (1, 1, 0, 0)], ["10 rows", "2 rows"])
    first, second = ([text.get_text() for text in axes.texts] for axes in figure.axes)
    assert first == ["rank 0"] * 3 + ["rank 1"] * 3 + ["rank 2"] * 3 + ["rank 3"]
    assert second == ["rank 0", "rank 1"]
    pyplot.close(figure)


def test_curves_are_told_apart_without_colour():
    figure = curves_figure({"right": [5.0, 4.0], "wrong": [5.0, 4.5, 4.25]})
    [axes] = figure.axes
    first, second = axes.lines[:2]
    assert list(second.get_ydata()) == [5.0, 4.5, 4.25] and list(second.get_xdata()) == [1, 2, 3]
    assert first.get_linestyle() != second.get_linestyle() and first.get_marker() != second.get_marker()
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["right", "wrong"]
    pyplot.close(figure)


def test_bars_stand_in_the_order_given_with_their_values():
    figure = bars_figure({"MiB": {"a": 1.0, "b": 2.5}, "calls": {"a": 3.0, "b": 4.0}})
    left, right = figure.axes
    assert [bar.get_width() for bar in left.patches] == [1.0, 2.5]
    assert [bar.get_width() for bar in right.patches] == [3.0, 4.0]
    assert [text.get_text() for text in left.texts] == ["1.0", "2.5"]
    assert left.yaxis_inverted(), "the first name is on top"
    pyplot.close(figure)
