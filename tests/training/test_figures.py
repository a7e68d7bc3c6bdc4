import math

from matplotlib import pyplot

from helpers.training.figures import loss_figure, rows_figure


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
