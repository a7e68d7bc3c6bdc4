"""What every runtime has in common: whether it is here, and a session that takes one token after the other."""

import importlib
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata

import numpy as np

from helpers.edge.decode import DecoderConfig, serving_tensors
from helpers.errors import CourseError


class RuntimesError(CourseError):
    """A runtime that cannot be asked what it was asked."""


class NotInstalled(RuntimesError):
    """A runtime that is not in this Python environment; `mend` is the line that installs it."""


class ExportedOnly(RuntimesError):
    """A model that was translated for a runtime which the installed package does not contain."""


class Unsupported(RuntimesError):
    """A model that a runtime has no words for."""


class Verdict(StrEnum):
    """How far a model came in a runtime, here and now."""

    RAN = "ran here"
    EXPORTED = "exported only"
    FAILED = "did not run"
    MISSING = "not installed"


class Session(ABC):
    """A model in a runtime, fp32 throughout, with the keys and values of all tokens so far.

    A subclass computes a token in `_step` and keeps its keys and values at the place it is told, over what was
    there. Not to be used by two threads.
    """

    def __init__(self, config: DecoderConfig):
        self.config, self.length = config, 0

    def step(self, token: int) -> np.ndarray:
        """Take one token; the logits (vocab,) float32 of what follows it."""
        if not 0 <= int(token) < self.config.vocab:
            raise RuntimesError(f"there is no token {token}", mend=f"use 0 to {self.config.vocab - 1}")
        if self.length == self.config.context:
            raise RuntimesError(f"the context of {self.length} tokens is full", mend="rewind() first")
        logits = self._step(int(token), self.length)
        self.length += 1
        return logits

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """Forget everything, take `tokens` one by one; the logits (len(tokens), vocab) float32 after each."""
        self.rewind()
        return np.stack([self.step(token) for token in tokens])

    def rewind(self, length: int = 0) -> None:
        """Forget all tokens behind the first `length`."""
        if not 0 <= length <= self.length:
            raise RuntimesError(f"no way back to {length} tokens", mend=f"use 0 to {self.length}")
        self.length = length

    def close(self) -> None:
        """Give back what the runtime holds outside of Python; nothing is taken after it."""
        self.length = self.config.context

    @abstractmethod
    def _step(self, token: int, place: int) -> np.ndarray:
        """Logits (vocab,) float32 in an array of their own after `token`, the one with number `place`."""


@dataclass(frozen=True)
class Runtime:
    """A program that can serve the model.

    name: as shown. modules: that must be importable. package: the distribution whose version counts. install:
    the line that brings it into an environment. start: makes a session; it raises `ExportedOnly` where the
    package translates a model but cannot run it, and `Unsupported` for a shape of model.
    """

    name: str
    modules: tuple[str, ...]
    package: str
    install: str
    start: Callable[[DecoderConfig, Mapping[str, np.ndarray]], Session]

    @property
    def missing(self) -> str:
        """The first of `modules` that is not in this environment, or an empty text. None of them is imported."""
        return next((name for name in self.modules if not _is_there(name)), "")

    @property
    def version(self) -> str:
        """Of the package, as `1.5.1`; an empty text where it is not installed."""
        try:
            return metadata.version(self.package)
        except metadata.PackageNotFoundError:
            return ""

    def serve(self, config: DecoderConfig, parameters: Mapping[str, np.ndarray]) -> Session:
        """A session with an empty cache.

        parameters: fp32 by the names of a PyTorch `state_dict`. Raises `NotInstalled`, `ExportedOnly`,
        `Unsupported`, or `DecodeError` for parameters that are not those of the config.
        """
        self._require_modules()
        serving_tensors(config, parameters)
        return self.start(config, {name: np.asarray(value, np.float32) for name, value in parameters.items()})

    def _require_modules(self) -> None:
        if missing := self.missing:
            raise NotInstalled(f"there is no module {missing}", where=self.name, mend=self.install)
        for name in self.modules:
            try:
                importlib.import_module(name)
            except ImportError as error:  # a package whose native library is not there
                raise NotInstalled(f"{name} does not import: {error}", where=self.name, mend=self.install) from None


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it would be in
        return False
