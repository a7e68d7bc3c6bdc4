"""Whether two tools mean the same kernel: Kineto and Nsight Compute spell one demangled name in two ways."""

import re
from functools import cache


def same_kernel(one: str, other: str) -> bool:
    """Whether two tools mean the same kernel; '' is a name that was lost, and fits any.

    ncu writes `(int)4` and `<unnamed>` where Kineto writes `4` and `(anonymous namespace)`, and gives a name
    without its template when asked for the function's name only: templates are compared where both have one.
    """
    if not one or not other or one == other:
        return True
    if base_name(one) != base_name(other):
        return False
    mine, theirs = _template(one), _template(other)
    return not mine or not theirs or mine == theirs


CASTS = re.compile(r"\((?:unsigned |signed )?(?:int|long|bool|char|short|long long)\)")
NAMELESS = re.compile(r"\(anonymous namespace\)::|<unnamed>::|unnamed>::")


@cache
def _plain(name: str) -> str:
    text = CASTS.sub("", NAMELESS.sub("", name)).removeprefix("void ").replace(" ", "")
    text = re.sub(r"(?<=\d)u?l{0,2}(?=[,>])", "", text)
    return re.sub(r"(?<=[<,])true(?=[,>])", "1", re.sub(r"(?<=[<,])false(?=[,>])", "0", text))


@cache
def _split(name: str) -> tuple[str, str]:
    """(function with its namespace, template arguments) without the call's arguments."""
    plain = _plain(name)
    start = plain.find("<")
    call = plain.find("(")
    if start < 0 or 0 <= call < start:
        return plain.partition("(")[0], ""
    depth = 0
    for at in range(start, len(plain)):
        depth += (plain[at] == "<") - (plain[at] == ">" and plain[at - 1] != "-")
        if depth == 0:
            return plain[:start], plain[start + 1 : at]
    return plain[:start], ""


def base_name(name: str) -> str:
    """The function's name without namespaces, template and arguments."""
    return _split(name)[0].rpartition("::")[2]


def _template(name: str) -> str:
    """The template's arguments without functors and lambdas, which each tool spells in its own way."""
    arguments = _split(name)[1]
    return "" if any(mark in arguments for mark in ("lambda", "{", "(", "::")) else arguments
