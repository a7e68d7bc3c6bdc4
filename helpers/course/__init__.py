"""The top floor: running the course, its labs and checks, and its report.

What a notebook uses is exported here; each name is imported when it is first asked for.
"""

import importlib

EXPORTS = {
    "check": "helpers.course.checks",
    "hint": "helpers.course.checks",
    "progress": "helpers.course.learner",
    "finish": "helpers.course.lesson",
    "expect": "helpers.course.lesson",
}

__all__ = list(EXPORTS)


def __getattr__(name: str):
    if name not in EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(EXPORTS[name]), name)
