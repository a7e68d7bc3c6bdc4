"""One model in every runtime: how far it came, how far its logits are from float64, and its seconds a token."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from helpers.edge import decode_reference
from helpers.edge.decode import DecoderConfig
from helpers.edge.runtimes.runtime import ExportedOnly, NotInstalled, Runtime, Session, Verdict
from helpers.errors import CourseError


@dataclass(frozen=True)
class Finding:
    """What became of a model in one runtime.

    version: of the runtime, '' where it is not installed. why: not "ran here", in a line. error: the largest
    distance of a logit from float64, in units of `decode_reference.tolerance`; None where no logits came. session:
    of a model that ran, with all tokens in its cache.
    """

    runtime: str
    version: str
    verdict: Verdict
    why: str = ""
    error: float | None = None
    session: Session | None = field(default=None, repr=False, compare=False)


def examine(
    runtime: Runtime, config: DecoderConfig, parameters: Mapping[str, np.ndarray], tokens: Sequence[int]
) -> Finding:
    """Serve the model and compare its logits after each of `tokens` with float64.

    Whatever a runtime raises becomes a verdict, and so do logits beyond the tolerance: "did not run".
    """
    session, found = None, {"runtime": runtime.name, "version": runtime.version}
    try:
        session = runtime.serve(config, parameters)
        logits = session.logits(tokens)
    except Exception as error:  # a foreign library may raise anything
        _close(session)
        return Finding(**found, verdict=_verdict(error), why=_first_line(error))
    truth = decode_reference.logits(config, parameters, tokens)
    error = float(np.abs(logits - truth).max() / decode_reference.tolerance(config, truth))
    if not error <= 1:  # NaN too
        _close(session)
        why = f"a logit is {error:.3g} tolerances from float64"
        return Finding(**found, verdict=Verdict.FAILED, why=why, error=error)
    return Finding(**found, verdict=Verdict.RAN, error=error, session=session)


def some_tokens(config: DecoderConfig, length: int) -> list[int]:
    """`length` tokens, the same in every process."""
    return np.random.default_rng(0).integers(0, config.vocab, length).tolist()


def seconds_per_token(session: Session, count: int = 1, token: int = 7) -> float:
    """Take `count` times `token` after what is in the cache, forget it again; seconds for one of them."""
    place = session.length
    start = time.perf_counter()
    for _ in range(count):
        session.step(token)
    seconds = (time.perf_counter() - start) / count
    session.rewind(place)
    return seconds


def bytes_per_token(config: DecoderConfig, parameters: Mapping[str, np.ndarray], length: int) -> int:
    """What a step must read and write at least in fp32: a row of each table, all else, and the cache, bytes."""
    tables = ("token.weight", "position.weight")
    values = sum(p[0].size if name in tables else p.size for name, p in parameters.items())
    return 4 * (values + 2 * config.blocks * config.kv_width * (length + 1))


def _close(session: Session | None) -> None:
    if session:
        session.close()


def _verdict(error: Exception) -> Verdict:
    if isinstance(error, NotInstalled):
        return Verdict.MISSING
    return Verdict.EXPORTED if isinstance(error, ExportedOnly) else Verdict.FAILED


def _first_line(error: Exception) -> str:
    """What a person needs of it: the line that installs, or what was wrong."""
    if isinstance(error, NotInstalled):
        return error.mend
    if isinstance(error, CourseError):
        return error.what
    return next(iter(f"{type(error).__name__}: {error}".splitlines()))[:300]
