"""Figures that every reader gets: no figure without alternative text, no measured one without its stamp."""

import base64
import html
import io
from typing import TYPE_CHECKING

from helpers.errors import CourseError
from helpers.measure.quantity import Origin

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class FigureError(CourseError):
    """A figure without alternative text, or with a stamp that names no origin."""


def show_fig(fig: "Figure", alt: str, *, stamp: str = "", dpi: int = 110) -> None:
    """Display a matplotlib figure as a PNG with alternative text, then close it.

    alt: what the figure shows, in words, for those who do not see it; the conclusion belongs in
        it. The text goes into an `<img alt>` of our own, because nbconvert's default template
        drops the alternative text that the output's metadata carries.
    stamp: where its numbers come from, printed beneath: `measured_on(device)` for numbers of this run, or
        the `stamp` of a quantity. A figure that no number went into has none.
    Raises `FigureError` when `alt` says nothing, or the stamp does not begin with an `Origin`.
    """
    if len(alt.split()) < 5:
        raise FigureError(
            f"the alternative text {alt!r} does not describe the figure",
            mend="say in a sentence what the axes are and what the reader should see",
        )
    stamp = stamp.strip("[]")
    if stamp and stamp.split()[0].rstrip(":") not in tuple(Origin):
        raise FigureError(
            f"the stamp {stamp!r} does not say where the numbers come from",
            mend=f"begin with one of {', '.join(Origin)}: use measured_on(device), or the stamp of a quantity",
        )
    from IPython.display import display
    from matplotlib import pyplot

    picture = io.BytesIO()
    fig.savefig(picture, format="png", dpi=dpi, bbox_inches="tight")
    pyplot.close(fig)
    data = {"text/html": _tag(picture.getvalue(), alt, stamp), "text/plain": _words(alt, stamp)}
    display(data, raw=True, metadata={"alt": alt})


def _tag(png: bytes, alt: str, stamp: str) -> str:
    source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    image = f'<img style="max-width:100%" alt="{html.escape(alt, quote=True)}" src="{source}">'
    if not stamp:
        return image
    return f'<figure style="margin:0">{image}<figcaption>{html.escape(stamp)}</figcaption></figure>'


def _words(alt: str, stamp: str) -> str:
    return f"[figure, {stamp}] {alt}" if stamp else f"[figure] {alt}"
