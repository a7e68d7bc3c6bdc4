from helpers.course.widgets import ANSWER_CLASS, slider


def test_moving_the_slider_recomputes_the_answer():
    box = slider("ranks", (1, 2, 4), lambda ranks: f"{100 // ranks} < rows")
    control, text = box.children
    assert text.value == "<p>100 &lt; rows</p>"
    control.value = 4
    assert text.value == "<p>25 &lt; rows</p>"
    assert control.description == "ranks" and ANSWER_CLASS in text._dom_classes
