from matplotlib import pyplot

from helpers.course.course_map import ALT, STATIONS, course_map


def test_the_map_and_its_words_name_every_track():
    figure = course_map()
    drawn = {text.get_text() for text in figure.axes[0].texts}
    assert {name for name, _, _ in STATIONS} <= drawn
    assert all(name in ALT for name, _, _ in STATIONS)
    pyplot.close(figure)


def test_no_text_runs_out_of_the_picture():
    figure = course_map()
    figure.canvas.draw()
    whole = figure.bbox
    for text in figure.axes[0].texts:
        box = text.get_window_extent()
        assert whole.x0 <= box.x0 and box.x1 <= whole.x1, text.get_text()
    pyplot.close(figure)
