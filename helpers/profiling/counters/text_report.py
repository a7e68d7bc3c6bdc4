"""The page that Nsight Compute prints on a terminal: one block per kernel, one table per section."""

import re
from dataclasses import dataclass, field

from helpers.profiling.counters.aliases import metric_name
from helpers.profiling.counters.csv_report import check_last, check_log
from helpers.profiling.counters.record import CounterError, KernelRecord, Source
from helpers.profiling.counters.units import base

TRIPLE = r"\((\d+), (\d+), (\d+)\)"
HEAD = re.compile(rf"  (\S.*?) {TRIPLE}x{TRIPLE}, Context \d+, Stream \d+, Device \d+, CC (\d+)\.(\d+)\s*")
OLD_HEAD = re.compile(r"  (\S.*), (\d{4})-(\w{3})-(\d{1,2}) [\d:]+, Context \d+, Stream \d+\s*")
LIKE_HEAD = re.compile(r"  \S.*, Context \d+")
SECTION = re.compile(r"    Section: (.+?)\s*")
DASHES = re.compile(r"    (-{3,}) (-{3,}) (-{3,})\s*")
MESSAGE = re.compile(r"    (OPT|INF|WRN|ERR) +(.*)")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


@dataclass
class _Block:
    """One kernel's block while it is read. `columns` are those of the table that is open, or ()."""

    head: dict
    section: str = ""
    columns: tuple[slice, ...] = ()
    in_head: bool = False
    metrics: dict[str, float] = field(default_factory=dict)
    rules: list[list[str]] = field(default_factory=list)

    def record(self, source: Source) -> KernelRecord:
        date = self.head.pop("date", "") or source.date
        rules = tuple((section, " ".join(words.split())) for section, words in self.rules)
        about = Source(source.file, source.tool, date, source.origin)
        return KernelRecord(**self.head, metrics=self.metrics, rules=rules, source=about)


def is_text_report(text: str) -> bool:
    """Whether a text holds the block of a kernel."""
    return any(HEAD.fullmatch(line) or OLD_HEAD.fullmatch(line) for line in text.splitlines())


def read_text(text: str, source: Source) -> tuple[KernelRecord, ...]:
    """The kernels of a text page, in order. The page does not name its rules: their section stands for them.

    Raises `CounterError` for a page without a kernel, a table that does not end, a row that is not one, and
    a kernel that the log names but the page lacks.
    """
    blocks: list[_Block] = []
    for number, line in enumerate(text.splitlines(), start=1):
        where = f"{source.file}, line {number}"
        if head := _head(line):
            _closed(blocks, where)
            blocks.append(_Block(head))
        elif LIKE_HEAD.match(line):
            raise _damaged("the head of a kernel is damaged", where)
        elif blocks:
            _take(blocks[-1], line, where)
    _closed(blocks, source.file)
    if not blocks:
        raise CounterError("no kernel is on this page", where=source.file, mend="check the kernel filter of ncu")
    check_log(text, len(blocks), source.file)
    check_last([list(block.metrics) for block in blocks], source.file)
    return tuple(block.record(source) for block in blocks)


def _head(line: str) -> dict | None:
    if found := HEAD.fullmatch(line):
        *numbers, major, minor = map(int, found.groups()[1:])
        grid, block = tuple(numbers[:3]), tuple(numbers[3:])
        return {"name": found[1], "grid": grid, "block": block, "capability": (major, minor)}
    if (found := OLD_HEAD.fullmatch(line)) and found[3] in MONTHS:
        return {"name": found[1], "date": f"{found[2]}-{MONTHS.index(found[3]) + 1:02d}-{int(found[4]):02d}"}
    return None


def _closed(blocks: list[_Block], where: str) -> None:
    """Raise when the last kernel's table is open, or it has none: the page was cut there."""
    if blocks and (blocks[-1].columns or not blocks[-1].metrics):
        raise _damaged(f"the section {blocks[-1].section!r} does not end", where)


def _damaged(what: str, where: str) -> CounterError:
    return CounterError(f"{what}: the page is cut or damaged", where=where, mend="copy it again, or collect again")


def _take(block: _Block, line: str, where: str) -> None:
    if found := SECTION.fullmatch(line):
        if block.columns:
            raise _damaged(f"the section {block.section!r} does not end", where)
        block.section = found[1]
    elif found := DASHES.fullmatch(line):
        _dashes(block, found)
    elif block.columns:
        _row(block, line, where)
    elif found := MESSAGE.match(line):
        block.rules.append([block.section, found[2]])
    elif line.startswith("          ") and block.rules and block.rules[-1][0] == block.section:
        block.rules[-1][1] += " " + line.strip()


def _dashes(block: _Block, found: re.Match) -> None:
    """A line of dashes opens a table, stands under its head, or ends it."""
    if not block.columns:
        block.columns = tuple(slice(*found.span(column)) for column in (1, 2, 3))
    elif block.in_head:
        block.in_head = False
    else:
        block.columns = ()


def _row(block: _Block, line: str, where: str) -> None:
    cells = [line[column].strip() for column in block.columns]
    if cells == ["Metric Name", "Metric Unit", "Metric Value"]:
        block.in_head = True
        return
    gaps = line[: block.columns[0].start] + line[block.columns[2].stop :]
    if not cells[0] or not cells[2] or gaps.strip():
        raise _damaged(f"{line.strip()[:60]!r} is no row of a table", where)
    name = metric_name(block.section, cells[0])
    try:
        value = base(cells[2], cells[1], name)
    except CounterError as error:
        raise CounterError(error.what, where=f"{where}, {name}", mend=error.mend) from None
    if value is not None:
        block.metrics.setdefault(name, value)
