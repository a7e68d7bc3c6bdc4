"""A recorded table: what all runtimes did with one model on one machine, for those who have not installed them."""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

from helpers.edge.decode import DecoderConfig
from helpers.edge.runtimes.runtime import RuntimesError, Verdict
from helpers.measure import Quantity, predicted, recorded

FILE = Path(__file__).with_name("recorded.json")


class RecordingError(RuntimesError):
    """A recorded table that is not there, or not whole."""


@dataclass(frozen=True)
class Line:
    """One runtime. seconds: for a token, the median of the rounds; error: in tolerances; None where nothing ran."""

    runtime: str
    version: str
    verdict: Verdict
    why: str = ""
    error: float | None = None
    seconds: float | None = None
    nbytes: int | None = None

    def __post_init__(self):
        object.__setattr__(self, "verdict", Verdict(self.verdict))
        ran = self.verdict is Verdict.RAN
        numbers = (self.error, self.seconds, self.nbytes)
        if ran and not all(isinstance(n, int | float) and math.isfinite(n) and n > 0 for n in numbers):
            raise RecordingError(f"{self.runtime} ran, with {numbers}", mend="record it again")
        if not ran and not self.why:
            raise RecordingError(f"{self.runtime}: {self.verdict}, without a reason", mend="record it again")


@dataclass(frozen=True)
class RecordedRuntimes:
    """All runtimes with one model on one machine.

    what: was run, in words. device, date (ISO): where and when. load: of the machine meanwhile, running
    processes over a minute. cores: that the process might use. config, length: the model, and the tokens in its
    cache. roof: of the memory, B/s, measured beside it.
    """

    what: str
    device: str
    date: str
    load: float
    cores: int
    config: DecoderConfig
    length: int
    roof: float
    lines: tuple[Line, ...]

    def rate(self, line: Line) -> Quantity:
        """Tokens a second of a line that ran, recorded."""
        return self._recorded(1 / line.seconds, "token/s", line)

    def share(self, line: Line) -> Quantity:
        """How much of the memory's roof that is, percent, recorded."""
        return self._recorded(100 * line.nbytes / line.seconds / self.roof, "%", line)

    def over(self, line: Line, base: Line) -> Quantity:
        """Tokens a second of a line over those of another, recorded."""
        return self._recorded(base.seconds / line.seconds, "×", line)

    def error(self, line: Line) -> Quantity:
        """The largest distance from float64, in tolerances, recorded."""
        return self._recorded(line.error, "", line)

    def nbytes(self, line: Line) -> Quantity:
        """What a token reads at least, predicted."""
        return predicted(line.nbytes, "B", "weights + cache")

    def _recorded(self, value: float, unit: str, line: Line) -> Quantity:
        tool = f"{line.runtime} {line.version}".strip()
        return recorded(value, unit, device=self.device, date=self.date, tool=tool)


def read_recorded(path: Path | str = FILE) -> RecordedRuntimes:
    """The table of a file, by default the one that comes with the course; `RecordingError` says what is wrong."""
    path = Path(path)
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        lines = tuple(Line(**line) for line in table.pop("lines"))
        made = RecordedRuntimes(config=DecoderConfig.of(table.pop("config")), lines=lines, **table)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordingError(
            f"cannot be read: {type(error).__name__}: {error}",
            where=path.name,
            mend="write it with benchmarks/decode.py --save",
        ) from None
    return made


def write_recorded(path: Path | str, table: RecordedRuntimes) -> Path:
    """Write a table as JSON that `read_recorded` takes; the path."""
    path = Path(path)
    scratch = path.with_name(f".{path.name}.part")
    scratch.write_text(json.dumps(asdict(table), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    scratch.replace(path)
    return path
