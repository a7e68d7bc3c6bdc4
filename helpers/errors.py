"""The one shape of an error in this course: what was wrong, where, and what to do."""


class CourseError(Exception):
    """An error that a learner can act on.

    `what` states the fault with the value seen, `where` names the file, key, cell or rank, and
    `mend` is the next thing to do. Each part of the package raises its own named subclass.
    """

    def __init__(self, what: str, *, where: str = "", mend: str = ""):
        self.what, self.where, self.mend = what, where, mend
        lines = [what, where and f"  where: {where}", mend and f"  mend:  {mend}"]
        super().__init__("\n".join(line for line in lines if line))

    def __reduce__(self):
        return _rebuild, (type(self), self.what, self.where, self.mend)


def _rebuild(kind: type[CourseError], what: str, where: str, mend: str) -> CourseError:
    """Unpickle a `CourseError`, so that it crosses from a rank or a worker unchanged."""
    return kind(what, where=where, mend=mend)
