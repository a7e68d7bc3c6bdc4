"""Widgets: a thin skin over a function that is tested without one."""

import html
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ipywidgets import VBox

ANSWER_CLASS = "course-slider-answer"


def slider(question: str, choices: Sequence[object], answer: Callable[[object], str]) -> "VBox":
    """A slider over `choices` with `answer(choice)` written under it.

    question: the label, read by a screen reader as well. choices: two or more values, printed as
    they are; the slider starts on the first. answer: returns plain text for one choice; it runs
    in the kernel each time the slider moves.
    """
    from ipywidgets import HTML, Layout, SelectionSlider, VBox

    control = SelectionSlider(
        options=[(str(choice), choice) for choice in choices],
        description=question,
        layout=Layout(width="95%"),
        style={"description_width": "initial"},
    )
    text = HTML()
    text.add_class(ANSWER_CLASS)

    def update(change: dict) -> None:
        text.value = f"<p>{html.escape(answer(change['new']))}</p>"

    control.observe(update, names="value")
    update({"new": control.value})
    return VBox([control, text])
