"""Named sizes: a model, a batch and the step that trains it."""

import difflib
import math
from dataclasses import dataclass

from helpers.errors import CourseError
from helpers.training.model import ModelConfig

FLOOR = 0.1


class PresetError(CourseError):
    """A preset that does not exist, or does not fit the number of ranks."""


@dataclass(frozen=True)
class Preset:
    """What is trained and how.

    model: see `ModelConfig`. batch: sequences of one step over all ranks together, so that the
    same step is the same step on any number of ranks. learning_rate: AdamW's, after warmup_steps
    of linear warm-up; over decay_steps it falls along half a cosine to a tenth, where it stays (0:
    it never falls).
    """

    name: str
    model: ModelConfig
    batch: int
    learning_rate: float
    warmup_steps: int
    decay_steps: int = 0

    def learning_rate_at(self, step: int) -> float:
        """The learning rate of step `step`, counted from 0."""
        rate = self.learning_rate * min(1.0, (step + 1) / self.warmup_steps)
        if not self.decay_steps or step < self.warmup_steps:
            return rate
        done = min(1.0, (step - self.warmup_steps) / self.decay_steps)
        return rate * (FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * done)) / 2)

    @property
    def tokens(self) -> int:
        """Tokens of one step, over all ranks."""
        return self.batch * self.model.context

    def batch_per_rank(self, world: int) -> int:
        """Sequences of one rank; `PresetError` when `world` ranks cannot share the batch evenly."""
        if self.batch % world:
            raise PresetError(
                f"a batch of {self.batch} sequences does not divide among {world} ranks",
                where=f"preset {self.name!r}",
                mend=f"use a number of ranks that divides {self.batch}",
            )
        return self.batch // world


TINY = ModelConfig(width=128, blocks=4, heads=4, context=128)
SMALL = ModelConfig(width=768, blocks=12, heads=12, context=1024)
DOCUMENT = ModelConfig(width=2048, blocks=12, heads=16, context=1024, vocab=32_000)
"""The size of the founding document: it counts 735 199 232 parameters with biases in the attention
and without positions or a last norm; ours has neither biases, and both of the others."""
LLAMA_8B = ModelConfig(
    width=4096,
    blocks=32,
    heads=32,
    context=8192,
    ffn_multiple=3.5,
    vocab=128_256,
    kv_heads=8,
    gated=True,
    rotary=True,
)
LLAMA_70B = ModelConfig(
    width=8192,
    blocks=80,
    heads=64,
    context=8192,
    ffn_multiple=3.5,
    vocab=128_256,
    kv_heads=8,
    gated=True,
    rotary=True,
)
"""The shapes of Llama 3 (Grattafiori et al. 2024, arXiv:2407.21783, table 3), untrained."""

PRESETS = {
    preset.name: preset
    for preset in (
        Preset("tiny", TINY, 16, 3e-3, 5),
        Preset("small", SMALL, 64, 1e-3, 20, 2000),
        Preset("minillm-735m", DOCUMENT, 32, 3e-4, 100, 10_000),
        Preset("8b", LLAMA_8B, 512, 3e-4, 2000, 100_000),
        Preset("70b", LLAMA_70B, 1024, 1.5e-4, 2000, 100_000),
    )
}


def load_preset(name: str) -> Preset:
    """The preset called `name`; `PresetError` names the nearest one when there is none."""
    if name in PRESETS:
        return PRESETS[name]
    near = difflib.get_close_matches(str(name), PRESETS, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise PresetError(f"there is no preset {name!r}", mend=f"{hint}the presets are {', '.join(PRESETS)}")
