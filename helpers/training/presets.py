"""Named sizes: a model, a batch and the step that trains it."""

import difflib
from dataclasses import dataclass

from helpers.errors import CourseError
from helpers.training.model import ModelConfig


class PresetError(CourseError):
    """A preset that does not exist, or does not fit the number of ranks."""


@dataclass(frozen=True)
class Preset:
    """What is trained and how.

    model: see `ModelConfig`. batch: sequences of one step over all ranks together, so that the
    same step is the same step on any number of ranks. learning_rate: AdamW's, after warmup_steps
    of linear warm-up.
    """

    name: str
    model: ModelConfig
    batch: int
    learning_rate: float
    warmup_steps: int

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


PRESETS = {
    preset.name: preset
    for preset in (
        Preset("tiny", ModelConfig(width=128, blocks=4, heads=4, context=128), 16, 3e-3, 5),
        Preset("small", ModelConfig(width=768, blocks=12, heads=12, context=1024), 64, 1e-3, 20),
    )
}


def load_preset(name: str) -> Preset:
    """The preset called `name`; `PresetError` names the nearest one when there is none."""
    if name in PRESETS:
        return PRESETS[name]
    near = difflib.get_close_matches(str(name), PRESETS, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise PresetError(f"there is no preset {name!r}", mend=f"{hint}the presets are {', '.join(PRESETS)}")
