"""Checkpoints that a killed run can trust: written aside, published whole, readable on another number of ranks."""

import json
import os
import re
import shutil
import zlib
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from helpers.errors import CourseError

if TYPE_CHECKING:
    from helpers.training.loop import Trainer

NAME = re.compile(r"step-(\d{8})")
MANIFEST = "manifest.json"


class CheckpointError(CourseError):
    """A checkpoint that is not there, is not whole, or belongs to another model."""


class Checkpoints:
    """The checkpoints of one run, in one folder that all ranks see.

    keep: how many to keep; older ones are removed when a newer one is published. asynchronous: copy
    the state and go on training while it is written; it is published by the next `save` or `finish`.

    A checkpoint is a folder `step-00000010` with the files of torch's distributed checkpoint (DCP),
    each rank's shards in its own, and a manifest with the size and checksum of each. It is written
    under another name and renamed when every rank is done, so a run that dies leaves the last whole
    one. Every method but `steps` is a collective: all ranks call it.
    """

    def __init__(self, folder: Path, keep: int = 2, asynchronous: bool = False):
        if keep < 1:
            raise CheckpointError(f"keeping {keep} checkpoints keeps nothing", mend="keep at least one")
        self.folder, self.keep, self.asynchronous = Path(folder), keep, asynchronous
        self._group = dist.new_group(backend="gloo") if dist.is_initialized() else None
        self._pending: tuple[Future, Path, dict] | None = None

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps of all published checkpoints, oldest first."""
        names = [NAME.fullmatch(path.name) for path in self.folder.glob("step-*")]
        return tuple(sorted(int(match[1]) for match in names if match))

    def save(self, trainer: "Trainer") -> None:
        """Save the trainer's weights, optimizer and place. Raises `CheckpointError` when it cannot be written."""
        self.finish()
        final = self.folder / f"step-{trainer.steps_done:08d}"
        draft = final.with_name(final.name + ".writing")
        self._first(lambda: _make_empty(draft))
        about = {"step": trainer.steps_done, "model": asdict(trainer.preset.model), "seed": trainer.batches.seed}
        options = {"checkpoint_id": draft, "process_group": self._group, "no_dist": self._group is None}
        state = _state(trainer)
        if self.asynchronous and self._group:
            self._pending = (dcp.async_save(state, **options), draft, about)
        else:
            dcp.save(state, **options)
            self._publish(draft, about)

    def finish(self) -> None:
        """Wait for a save that still runs, and publish it."""
        if self._pending:
            (future, draft, about), self._pending = self._pending, None
            future.result()
            self._publish(draft, about)

    def load(self, trainer: "Trainer", step: int | None = None) -> int:
        """Load the newest checkpoint, or that of `step`, into a trainer on any number of ranks.

        Returns its step, or 0 when the folder has none and `step` is None. Raises `CheckpointError` when
        it is absent, incomplete, or of another model or seed; the trainer is as it was then.
        """
        steps = self.steps
        if step is None and not steps:
            return 0
        step = steps[-1] if step is None else step
        folder = self.folder / f"step-{step:08d}"
        about = self._verified(folder)
        _require_same(about, trainer, folder)
        state = _state(trainer)
        try:
            dcp.load(state, checkpoint_id=folder, process_group=self._group, no_dist=self._group is None)
        except Exception as error:  # DCP wraps whatever its readers raise
            raise CheckpointError(
                f"cannot be read: {str(error).strip().splitlines()[-1]}", where=str(folder), mend=_OTHER
            ) from None
        set_state_dict(
            trainer.model, trainer.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
        trainer.steps_done = step
        return step

    def _publish(self, draft: Path, about: dict) -> None:
        self._barrier()
        sums = self._checksums(draft)
        self._first(lambda: _rename(draft, about | {"files": sums}))
        self._first(self._retire)

    def _verified(self, folder: Path) -> dict:
        """The manifest of a checkpoint whose files are all as it says."""
        about = _read_manifest(folder)
        found = self._checksums(folder)
        for name, expected in about["files"].items():
            size, checksum = found.get(name, (0, 0))
            if size != expected[0]:
                raise CheckpointError(f"{name} has {size} of {expected[0]} bytes", where=str(folder), mend=_OTHER)
            if checksum != expected[1]:
                raise CheckpointError(f"{name} was changed: its checksum differs", where=str(folder), mend=_OTHER)
        return about

    def _checksums(self, folder: Path) -> dict[str, list[int]]:
        """(bytes, CRC-32) of each file, by name; the ranks share the reading."""
        files = [path for path in sorted(folder.iterdir()) if path.name != MANIFEST]
        rank, world = (dist.get_rank(), dist.get_world_size()) if self._group else (0, 1)
        mine = {path.name: [path.stat().st_size, zlib.crc32(path.read_bytes())] for path in files[rank::world]}
        everyone = [mine] * world
        if self._group:
            dist.all_gather_object(everyone, mine, group=self._group)
        return {name: entry for part in everyone for name, entry in part.items()}

    def _retire(self) -> None:
        for step in self.steps[: -self.keep]:
            shutil.rmtree(self.folder / f"step-{step:08d}", ignore_errors=True)

    def _first(self, work: Callable[[], None]) -> None:
        """Let rank 0 do `work` while the others wait; when it fails, every rank raises."""
        failure: list[str | None] = [None]
        if self._group is None or dist.get_rank() == 0:
            try:
                work()
            except OSError as error:
                failure[0] = str(error)
        if self._group:
            dist.broadcast_object_list(failure, 0, group=self._group)
        if failure[0]:
            raise CheckpointError(
                f"cannot be written: {failure[0]}", where=str(self.folder), mend="name a folder with free space"
            )

    def _barrier(self) -> None:
        if self._group:
            dist.barrier(group=self._group)


_OTHER = "load an older step, or train again without --checkpoint"


def _state(trainer: "Trainer") -> dict:
    """Weights and optimizer by the names of the unsharded model."""
    model, optimizer = get_state_dict(trainer.model, trainer.optimizer)
    return {"model": model, "optimizer": optimizer}


def _make_empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _rename(draft: Path, about: dict) -> None:
    """Write the manifest, last of all files, and give the folder its name."""
    with (draft / MANIFEST).open("w", encoding="utf-8") as file:
        json.dump(about, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    final = draft.with_name(draft.name.removesuffix(".writing"))
    shutil.rmtree(final, ignore_errors=True)
    draft.replace(final)


def _read_manifest(folder: Path) -> dict:
    if not folder.is_dir():
        raise CheckpointError("there is no such checkpoint", where=str(folder), mend="see Checkpoints(folder).steps")
    try:
        about = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return about | {"files": about["files"], "model": about["model"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"its manifest cannot be read: {error}", where=str(folder), mend=_OTHER) from None


def _require_same(about: dict, trainer: "Trainer", folder: Path) -> None:
    here = asdict(trainer.preset.model)
    for name, value in about["model"].items():
        if here.get(name) != value:
            raise CheckpointError(
                f"it holds a model with {name} {value}, this one has {here.get(name)}",
                where=str(folder),
                mend="use the preset that wrote it",
            )
    if about.get("seed") != trainer.batches.seed:
        raise CheckpointError(
            f"it was trained with seed {about.get('seed')}, this run has {trainer.batches.seed}",
            where=str(folder),
            mend="use the same --seed: the order of the data depends on it",
        )
