"""Every kernel under the rule of thumb, NVIDIA's rule and the classifier."""

from collections import Counter
from collections.abc import Iterable

from helpers.measure import Table
from helpers.profiling.counters.record import KernelRecord
from helpers.profiling.diagnosis.classifier import diagnose
from helpers.profiling.diagnosis.nvidia_rule import nvidia_rule
from helpers.profiling.diagnosis.rule_v0 import rule_of_thumb


def classification_table(records: Iterable[KernelRecord]) -> Table:
    """One row a record, in order: device, kernel, what each of the three says, and the classifier's confidence."""
    rows = []
    for record in records:
        ours = diagnose(record)
        said = str(nvidia_rule(record) or "metrics missing")
        row = (device_of(record), short_name(record.name), str(rule_of_thumb(record)), said)
        rows.append((*row, _short(str(ours)), str(ours.confidence)))
    return Table(("device", "kernel", "rule of thumb", "NVIDIA's rule", "classifier", "confidence"), tuple(rows))


def classification_counts(records: Iterable[KernelRecord]) -> Table:
    """How many records got each verdict of each rule, the most frequent first."""
    records = tuple(records)
    verdicts = {
        "rule of thumb": (str(rule_of_thumb(record)) for record in records),
        "NVIDIA's rule": (str(nvidia_rule(record) or "metrics missing") for record in records),
        "classifier": (_short(str(diagnose(record))) for record in records),
    }
    rows = ((rule, name, count) for rule, found in verdicts.items() for name, count in Counter(found).most_common())
    return Table(("rule", "verdict", "kernels"), tuple(rows))


def _short(verdict: str) -> str:
    """A refusal without its details: `not classifiable: the collection failed`."""
    return ":".join(verdict.split(":")[:2]) if verdict.startswith("not classifiable") else verdict


def device_of(record: KernelRecord) -> str:
    """The device's name, or its compute capability where the file does not name it."""
    if record.device or record.capability is None:
        return record.device or "unknown"
    return "compute capability {}.{}".format(*record.capability)


def short_name(name: str, width: int = 36) -> str:
    """A kernel's name without return type, namespaces and arguments, at most `width` characters.

    CUTLASS calls all its kernels `Kernel`: such a one keeps the name of its template's argument.
    """
    word = _base(name)
    if word == "Kernel" and "Kernel<" in name:
        word = f"Kernel<{_base(name.partition('Kernel<')[2])}>"
    return word if len(word) <= width else word[: width - 1] + "…"


def _base(name: str) -> str:
    depth, kept = 0, []
    for letter in name.removeprefix("void ").replace("(anonymous namespace)", "").replace("<unnamed>", ""):
        if depth == 0 and (letter in "[," or (letter in "<(" and _is_call(kept))):
            break
        depth += letter in "<("
        if depth == 0 and letter not in ">)":
            kept.append(letter)
        depth = max(0, depth - (letter in ">)"))
    return "".join(kept).rpartition("::")[2].strip() or name


def _is_call(kept: list[str]) -> bool:
    """A bracket after a plain name ends it; one after `::` holds a namespace."""
    return bool(kept) and kept[-1] not in ": "
