"""What every notebook ends with, and how it shows an error on purpose."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

SENTINEL_KEY = "course_sentinel"
TOKEN_VARIABLE = "COURSE_RUN_TOKEN"


class NothingRaised(AssertionError):
    """The error that a cell meant to show did not come."""


def finish() -> None:
    """Say that the notebook reached its end: the last cell of every notebook.

    The runner believes only this sentinel, which carries the token of its own run: a notebook
    that left early, or whose kernel died, has none.
    """
    from IPython.display import display

    token = os.environ.get(TOKEN_VARIABLE, "")
    display({"text/plain": "finished"}, raw=True, metadata={SENTINEL_KEY: token})


@contextmanager
def expect(*kinds: type[BaseException]) -> Iterator[None]:
    """Run a block that must raise one of `kinds`, and print the error as the learner would meet it.

    Raises `NothingRaised` when the block ends well: an error that no longer comes must not pass
    unseen. An error of another kind goes through.
    """
    try:
        yield
    except kinds as error:
        print(f"{type(error).__name__}: {error}")
    else:
        names = " or ".join(kind.__name__ for kind in kinds)
        raise NothingRaised(f"expected {names}, but nothing was raised")
