"""The receipt: a Mac's word that Apple's compiler takes the course's kernels and its GPU computes them right.

`make` runs on a Mac only: every twin through torch.mps, against float64 on the CPU. Its JSON file is
committed, with chip, macOS, torch and date, and is read elsewhere with its age. There may be none; then
`status` says so, and no page may claim more than the stand-in shows.
"""

import datetime
import hashlib
import json
import os
import platform
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from helpers.edge.metal import bridge, cases, twins
from helpers.edge.metal.errors import MetalError, ReceiptError
from helpers.measure import Quantity, recorded

FOLDER = Path(__file__).parent / "receipts"
FORMAT = 1
REPEATS = 5
FRESH_DAYS = 180
PROBE = "kernel void probe(device float* x, uint i [[thread_position_in_grid]]) { x[i] = 1; }"


@dataclass(frozen=True)
class KernelLine:
    """One kernel on the Mac. digest: of the MSL that ran. seconds: median of a call, copies included.

    error: the largest, in units of its bound: at most 1 when right. problem: what went wrong instead, "" for
    nothing.
    """

    name: str
    digest: str
    error: float
    seconds: float
    problem: str = ""


@dataclass(frozen=True)
class Receipt:
    """What a Mac said. date: ISO. simd_width: lanes of a simdgroup there."""

    chip: str
    macos: str
    torch: str
    date: str
    simd_width: int
    kernels: tuple[KernelLine, ...]

    def age_days(self, today: datetime.date | None = None) -> int:
        """Days since it was made."""
        return ((today or datetime.date.today()) - datetime.date.fromisoformat(self.date)).days

    def stale(self) -> tuple[str, ...]:
        """The kernels whose text has changed since, and those that it does not know."""
        known = {line.name: line.digest for line in self.kernels}
        return tuple(name for name in twins.names() if known.get(name) != digest(name))

    def time_of(self, name: str) -> Quantity:
        """The recorded time of one call of a kernel. Raises `ReceiptError` for one that it does not have."""
        for line in self.kernels:
            if line.name == name and not line.problem:
                tool = f"torch {self.torch}, macOS {self.macos}"
                return recorded(line.seconds, "s", device=self.chip, date=self.date, tool=tool)
        raise ReceiptError(f"the receipt has no time of {name}", where=self.chip, mend="make a new receipt on a Mac")


def digest(name: str) -> str:
    """Names the text of a twin: the first 16 digits of its SHA-256."""
    return hashlib.sha256(twins.msl(name).encode()).hexdigest()[:16]


def read(folder: Path = FOLDER) -> tuple[Receipt, ...]:
    """All receipts, the newest first. Raises `ReceiptError` for a file that is not one."""
    found = [_read(path) for path in sorted(folder.glob("*.json"))]
    return tuple(sorted(found, key=lambda receipt: receipt.date, reverse=True))


def status(folder: Path = FOLDER, today: datetime.date | None = None) -> str:
    """One line for a page: how old the newest receipt is and what it does not cover, or that there is none."""
    receipts = read(folder)
    if not receipts:
        return "no receipt: no Mac has run these kernels; what is shown comes from the stand-in"
    newest = receipts[0]
    age = newest.age_days(today)
    failed = [line.name for line in newest.kernels if line.problem or not line.error <= 1]
    notes = [f"{newest.chip}, macOS {newest.macos}, torch {newest.torch}, {newest.date} ({age} days old)"]
    if age > FRESH_DAYS:
        notes.append("old: make a new one")
    if failed:
        notes.append(f"failed there: {', '.join(failed)}")
    if stale := newest.stale():
        notes.append(f"changed since: {', '.join(stale)}")
    return "receipt: " + "; ".join(notes)


def make(folder: Path = FOLDER) -> Path:
    """Run every twin on this Mac's GPU, and write the receipt. The path of its file.

    This cannot be verified without a Mac. A kernel that does not compile or is wrong gets a line that
    says so: that is what the receipt is for. Raises `ReceiptError` anywhere else than on such a Mac.
    """
    if not bridge.available():
        raise ReceiptError(
            "a receipt is made by an Apple GPU, and there is none here",
            where=platform.platform(terse=True),
            mend="run it on a Mac: python -m helpers.edge.metal.receipt",
        )
    import torch

    lines = tuple(_line(name) for name in twins.names())
    width = bridge.MacLibrary(PROBE).probe.thread_execution_width
    today = datetime.date.today().isoformat()
    receipt = Receipt(_chip(), platform.mac_ver()[0], torch.__version__, today, width, lines)
    return write(receipt, folder)


def write(receipt: Receipt, folder: Path = FOLDER) -> Path:
    """Store a receipt under its date and chip; the file appears whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{receipt.date}-{receipt.chip.lower().replace(' ', '-')}.json"
    draft, path = folder / f"{name}.draft", folder / name
    draft.write_text(json.dumps({"format": FORMAT} | asdict(receipt), indent=1) + "\n", encoding="utf-8")
    os.replace(draft, path)
    return path


def _line(name: str) -> KernelLine:
    """One kernel over all its cases. A time is the median of the last case's calls."""
    worst, seconds = 0.0, [0.0]
    try:
        for case in cases.of(name):
            worst = max(worst, case.error(case.run()))
            seconds = [_timed(case) for _ in range(REPEATS)]
    except MetalError as error:
        return KernelLine(name, digest(name), 0.0, 0.0, str(error))
    return KernelLine(name, digest(name), worst, float(np.median(seconds)))


def _timed(case: "cases.Case") -> float:
    start = time.perf_counter()
    case.run()
    return time.perf_counter() - start


def _chip() -> str:
    command = ["sysctl", "-n", "machdep.cpu.brand_string"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or platform.processor() or "unknown chip"


def _read(path: Path) -> Receipt:
    mend = "make it again on a Mac, or remove it"
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        if held.pop("format") != FORMAT:
            raise ValueError("another format")
        lines = tuple(KernelLine(**line) for line in held.pop("kernels"))
        receipt = Receipt(**held, kernels=lines)
        receipt.age_days()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ReceiptError(f"not a receipt: {error}", where=str(path), mend=mend) from None
    return receipt


if __name__ == "__main__":
    print(make())
