from helpers.profiling.figures import call_cost_figure, memory_figure, step_figure


def test_the_price_of_a_call_has_its_floor_and_its_slope():
    [axes] = call_cost_figure([1, 1000, 10**6], [2e-6, 3e-6, 1e-3], floor=2e-6, rate=1e9).axes
    points, floor, slope = axes.lines
    assert points.get_ydata().tolist() == [2.0, 3.0, 1000.0]
    assert set(floor.get_ydata()) == {2.0} and slope.get_ydata()[-1] == 1000.0
    assert axes.get_xscale() == axes.get_yscale() == "log"


def test_curves_of_steps_differ_in_line_and_marker():
    [axes] = step_figure([0.0, 1e-3], {"a": [1e-3, 2e-3], "b": [1e-3, 1e-3]}).axes
    one, other = axes.lines
    assert one.get_linestyle() != other.get_linestyle() and one.get_marker() != other.get_marker()
    assert one.get_ydata().tolist() == [1.0, 2.0]


def test_memory_is_a_stair_with_named_moments():
    [axes] = memory_figure([0.0, 1e-3], [2**20, 2**21], {"backward": 5e-4}).axes
    assert axes.lines[0].get_ydata().tolist() == [1.0, 2.0]
    assert [text.get_text() for text in axes.texts] == ["backward"]
