"""What a diagnosis is: the limiting level, how hard it limits, the evidence, and what may be done about it."""

from dataclasses import dataclass
from enum import StrEnum

from helpers.measure import Quantity


class Level(StrEnum):
    """What holds a kernel back.

    From DRAM to LSU it is a unit that data pass; from ISSUE to XU it is a unit of the SM that executes. GRID, TAIL,
    LATENCY and HOST name the absence of a busy unit. The last three stand for "one of several": the record
    does not hold enough to say which.
    """

    DRAM = "DRAM"
    L2 = "L2"
    L1 = "L1"
    LSU = "LSU"
    ISSUE = "issue slots"
    FMA = "FMA pipe"
    ALU = "ALU pipe"
    TENSOR = "tensor pipe"
    FP16 = "FP16 pipe"
    FP64 = "FP64 pipe"
    XU = "XU pipe"
    GRID = "small grid"
    TAIL = "tail"
    LATENCY = "latency"
    HOST = "host"
    NONE = "none"
    L1_OR_LSU = "L1 or LSU"
    MEMORY = "memory, level unknown"
    SM = "SM, unit unknown"


MEMORY_LEVELS = (Level.DRAM, Level.L2, Level.L1, Level.LSU)
SM_LEVELS = (
    Level.ISSUE,
    Level.LSU,
    Level.FMA,
    Level.ALU,
    Level.TENSOR,
    Level.FP16,
    Level.FP64,
    Level.XU,
)
STANDS_FOR = {
    Level.L1_OR_LSU: (Level.L1, Level.LSU),
    Level.MEMORY: (*MEMORY_LEVELS, Level.L1_OR_LSU),
    Level.SM: (*SM_LEVELS, Level.L1_OR_LSU),
}


class State(StrEnum):
    """How the level limits.

    SATURATED: at 80 % of its peak or more. LEANING: from 60 % on, and no other within 10 points. BALANCED: from
    60 % on, and another within 10 points. LATENCY: every unit is below 60 %, warps wait. IDLE_SMS: some SMs
    have nothing to run. OVERHEAD: the device waits for the host. REFUSED: not classifiable.
    """

    SATURATED = "saturated"
    LEANING = "leaning"
    BALANCED = "balanced"
    LATENCY = "latency-bound"
    IDLE_SMS = "idle SMs"
    OVERHEAD = "overhead-bound"
    REFUSED = "not classifiable"


class Confidence(StrEnum):
    """HIGH: nothing speaks against the verdict. MEDIUM: something is missing. LOW: something contradicts it."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


@dataclass(frozen=True)
class Evidence:
    """One number that the verdict rests on.

    name: of the metric or formula. value: with its stamp. threshold: what it is held against, in the value's
    unit, or None. says: what follows.
    """

    name: str
    value: Quantity
    threshold: float | None
    says: str

    def __str__(self) -> str:
        against = "" if self.threshold is None else f" (threshold {self.threshold:g})"
        return f"{self.name} = {self.value.text}{against}: {self.says}"


@dataclass(frozen=True)
class Remedy:
    """Something to try. ceiling: the largest speed-up that it can bring, a predicted factor with its formula."""

    what: str
    why: str
    ceiling: Quantity


@dataclass(frozen=True)
class Doubt:
    """Why the verdict may be wrong. serious: something contradicts it, instead of only being missing."""

    text: str
    serious: bool = False


@dataclass(frozen=True)
class Diagnosis:
    """What limits one launch of a kernel.

    evidence: the deciding number first. remedies: those against waste that was counted first, then the others, each
    kind by its ceiling. refusal: why nothing can be said, '' otherwise; then `level` is NONE. doubts: what lowers
    the confidence.
    """

    level: Level
    state: State
    evidence: tuple[Evidence, ...] = ()
    confidence: Confidence = Confidence.HIGH
    remedies: tuple[Remedy, ...] = ()
    refusal: str = ""
    doubts: tuple[Doubt, ...] = ()

    @property
    def stall(self) -> str:
        """The reason for which most warps wait, as `barrier`; '' where stalls were not collected."""
        names = (item.name for item in self.evidence)
        return next((name.removeprefix("stall ") for name in names if name.startswith("stall ")), "")

    def __str__(self) -> str:
        if self.state is State.REFUSED:
            return f"not classifiable: {self.refusal}"
        if self.state is State.LATENCY:
            return f"latency-bound: {self.stall or 'stalls not collected'}"
        return f"{self.level}, {self.state}"


def confidence_of(doubts: tuple[Doubt, ...]) -> Confidence:
    """LOW with a serious doubt, MEDIUM with any, HIGH without."""
    if any(doubt.serious for doubt in doubts):
        return Confidence.LOW
    return Confidence.MEDIUM if doubts else Confidence.HIGH
