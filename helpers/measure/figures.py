"""Figures that every reader gets: no figure without alternative text."""

import base64
import html
import io
from typing import TYPE_CHECKING

from helpers.errors import CourseError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class FigureError(CourseError):
    """A figure without alternative text."""


def show_fig(fig: "Figure", alt: str, *, dpi: int = 110) -> None:
    """Display a matplotlib figure as a PNG with alternative text, then close it.

    alt: what the figure shows, in words, for those who do not see it; the conclusion belongs in
        it. The text goes into an `<img alt>` of our own, because nbconvert's default template
        drops the alternative text that the output's metadata carries.
    Raises `FigureError` when `alt` says nothing.
    """
    if len(alt.split()) < 5:
        raise FigureError(
            f"the alternative text {alt!r} does not describe the figure",
            mend="say in a sentence what the axes are and what the reader should see",
        )
    from IPython.display import display
    from matplotlib import pyplot

    picture = io.BytesIO()
    fig.savefig(picture, format="png", dpi=dpi, bbox_inches="tight")
    pyplot.close(fig)
    data = base64.b64encode(picture.getvalue()).decode()
    words = html.escape(alt, quote=True)
    tag = f'<img style="max-width:100%" alt="{words}" src="data:image/png;base64,{data}">'
    display({"text/html": tag, "text/plain": f"[figure] {alt}"}, raw=True, metadata={"alt": alt})
