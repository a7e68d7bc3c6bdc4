"""Read the kernels of a report, whatever form Nsight Compute gave it."""

import re
from pathlib import Path

from helpers.profiling.counters.csv_report import NO_KERNEL, is_header, read_csv
from helpers.profiling.counters.ncu_rep import MAGIC, read_ncu_rep
from helpers.profiling.counters.record import CounterError, KernelRecord, Source
from helpers.profiling.counters.text_report import is_text_report, read_text

COMPRESSED = {
    b"\x1f\x8b": ("gzip", "gunzip"),
    b"PK\x03\x04": ("zip", "unzip"),
    b"\x28\xb5\x2f\xfd": ("zstd", "unzstd"),
    b"\xfd7zXZ": ("xz", "unxz"),
    b"BZh": ("bzip2", "bunzip2"),
}
BYTE_ORDER = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16", b"\xef\xbb\xbf": "utf-8-sig"}
LOG = re.compile(r"^==(PROF|ERROR|WARNING)== ?(.*)", re.MULTILINE)
PERMISSION = "ERR_NVGPUCTRPERM"
ALLOW = (
    "run as root, or allow it for all: options nvidia NVreg_RestrictProfilingToAdminUsers=0 in "
    "/etc/modprobe.d, and reload the driver; in a container, start it with --cap-add=SYS_ADMIN"
)


def read_kernels(path: str | Path) -> tuple[KernelRecord, ...]:
    """The kernels of a report, in order: a `.ncu-rep`, a `--csv` output in any form, or the text page.

    The form is told from the content, not from the name. Raises `CounterError` for a file that is absent,
    empty, compressed, cut, damaged, of another kind, or a log of a run that profiled nothing.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CounterError(
            f"the report cannot be read: {error.strerror}", where=str(path), mend="check the path"
        ) from None
    if not data.strip():
        raise CounterError("the file is empty", where=str(path), mend=f"collect again. {NO_KERNEL}")
    if data.startswith(MAGIC):
        return read_ncu_rep(path)
    _refuse_other_kinds(data, path)
    text = data.decode(next((name for mark, name in BYTE_ORDER.items() if data.startswith(mark)), "utf-8"), "replace")
    return _read_text(text, Source(path.name, _tool(text), ""), path)


def _refuse_other_kinds(data: bytes, path: Path) -> None:
    for mark, (kind, undo) in COMPRESSED.items():
        if data.startswith(mark):
            raise CounterError(f"the file is compressed ({kind})", where=str(path), mend=f"{undo} it first")
    if data.startswith(b"SQLite format 3"):
        raise CounterError("this is a database, as nsys exports it", where=str(path), mend="counters come from ncu")
    if re.match(rb"\s*(\{|\[\s*[\[{\"])", data):
        raise CounterError("this is JSON", where=str(path), mend="a torch trace is read by helpers.profiling.trace")
    if b"\0" in data and data[:2] not in BYTE_ORDER:
        raise CounterError(
            "this is no report of Nsight Compute",
            where=str(path),
            mend="give a .ncu-rep, a --csv output or a text page",
        )


def _read_text(text: str, source: Source, path: Path) -> tuple[KernelRecord, ...]:
    if any(is_header(line) for line in text.splitlines()):
        return read_csv(text, source)
    if is_text_report(text):
        return read_text(text, source)
    log = LOG.findall(text)
    if not log:
        raise CounterError(
            "this is no report of Nsight Compute",
            where=str(path),
            mend="give a .ncu-rep, a --csv output or a text page",
        )
    raise log_error([words for kind, words in log if kind != "PROF"], text, str(path))


def log_error(complaints: list[str], text: str, where: str) -> CounterError:
    """What a log without kernels says: why nothing was profiled, and what to do about it."""
    if PERMISSION in text:
        return CounterError("the driver does not allow counters to this user", where=where, mend=ALLOW)
    if "not compatible" in text:
        return CounterError(
            f"ncu does not fit the driver: {complaints[-1:]}", where=where, mend="update ncu or the driver"
        )
    said = f": {complaints[-1][:160]}" if complaints else ""
    return CounterError(f"only ncu's log is here, no kernel was profiled{said}", where=where, mend=NO_KERNEL)


def _tool(text: str) -> str:
    """The tool's version, where the output names it."""
    found = re.search(r"NVIDIA Nsight Compute[^\n]*?(\d{4}\.\d+\.\d+)", text)
    return f"ncu {found[1]}" if found else "ncu"
