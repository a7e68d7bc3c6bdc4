"""The training loop: one class that steps a model on one process, or on the ranks of a mesh."""

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from helpers.errors import CourseError
from helpers.training.clip import clip_grad_norm
from helpers.training.data import IGNORE, Batch, Batches, standard_library
from helpers.training.materialise import materialise
from helpers.training.metrics import StepMetrics, peak_memory
from helpers.training.mfu import flops_per_token
from helpers.training.model import MiniLLM, build_model
from helpers.training.plan import DTYPES, ShardingPlan, shard
from helpers.training.plan_guards import require_owned
from helpers.training.presets import Preset

CLIP_NORM = 1.0
REDUCE_EACH, HOLD, KEEP = MODES = ("reduce each", "hold", "keep")


class LoopError(CourseError):
    """A way of accumulating that does not exist, or micro-batches that cannot be cut."""


@dataclass(frozen=True)
class Accumulation:
    """How a step is split into micro-batches.

    micro_batches: of equal size, on every rank. mode: `reduce each` reduces the gradients of every
    micro-batch into shards; `hold` keeps whole gradients until the last, which saves reductions and
    costs memory; `keep` also keeps the weights gathered from one micro-batch to the next. With
    replicas, `reduce each` adds up over the replicas in the last micro-batch only.
    """

    micro_batches: int = 1
    mode: str = REDUCE_EACH

    def __post_init__(self):
        if self.mode not in MODES or self.micro_batches < 1:
            raise LoopError(
                f"cannot accumulate {self.micro_batches} micro-batches by {self.mode!r}",
                where="Accumulation",
                mend=f"use one or more, and one of {', '.join(MODES)}",
            )

    def prepare(self, model: FSDPModule, index: int) -> None:
        """Set on a sharded model what the backward of micro-batch `index` leaves undone."""
        last = index == self.micro_batches - 1
        model.set_is_last_backward(last)
        model.set_requires_gradient_sync(last or self.mode == REDUCE_EACH)
        model.set_requires_all_reduce(last)  # after the line above, which sets it too
        model.set_reshard_after_backward(last or self.mode != KEEP)


class Trainer:
    """A `MiniLLM`, its data and its AdamW, ready to `step`.

    preset: sizes and learning rate; its batch is the batch of all ranks together. mesh: of
    `plan.make_mesh`, or None for one process, which is the oracle of the sharded run. plan: how the
    model is sharded. accumulation: how a step is split. on_meta: build without memory, shard, then
    initialise each shard; otherwise every rank builds the whole model first. shortest: see
    `Batches`. roof: FLOP/s that the machine can do, for the MFU. The same `seed` gives the same
    weights and data in every one of these ways.

    The loss and its gradient are means over the *tokens* of the step, wherever they lie.

    Raises `PresetError` when the ranks do not divide the batch, `LoopError` when micro-batches do
    not divide a rank's share, `PlanError` when the plan does not fit the mesh or the model.
    """

    def __init__(
        self,
        preset: Preset,
        mesh: DeviceMesh | None = None,
        plan: ShardingPlan | None = None,
        *,
        accumulation: Accumulation | None = None,
        on_meta: bool = False,
        shortest: int = 0,
        seed: int = 0,
        roof: float | None = None,
        device: str | torch.device = "cpu",
    ):
        self.preset, self.mesh, self.plan = preset, mesh, plan or ShardingPlan()
        self.accumulation = accumulation or Accumulation()
        self.device, self.roof = torch.device(mesh.device_type if mesh else device), roof
        self._data = self.plan.data_mesh(mesh) if mesh else None
        self._open_data(shortest, seed)
        self.model = self._build(on_meta and mesh is not None, seed)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=preset.learning_rate)
        self.steps_done = 0

    @property
    def readers(self) -> int:
        """Ranks that read different data."""
        return self._data.size() if self._data else 1

    def _open_data(self, shortest: int, seed: int) -> None:
        share = self.preset.batch_per_rank(self.readers)
        if share % self.accumulation.micro_batches:
            raise LoopError(
                f"a rank's {share} sequences do not divide into {self.accumulation.micro_batches} micro-batches",
                where=f"preset {self.preset.name!r} on {self.readers} ranks",
                mend=f"use a number of micro-batches that divides {share}",
            )
        text, context, batch = standard_library(), self.preset.model.context, self.preset.batch
        place = (place_in(self._data) if self._data else 0, self.readers, seed)
        self.batches = Batches(text.train, context, batch, *place, shortest)
        self.held_out = Batches(text.held_out, context, batch, *place)

    def _build(self, on_meta: bool, seed: int) -> MiniLLM:
        if on_meta:
            with torch.device("meta"):
                model = MiniLLM(self.preset.model)
            shard(model, self.mesh, self.plan)
            return materialise(model, "cpu" if self.plan.offload else self.device.type, seed)
        model = build_model(self.preset.model, seed).to(self.device)
        return shard(model, self.mesh, self.plan) if self.mesh else model

    def step(self) -> StepMetrics:
        """Train on the next batch. Wrap a call of this in a profiler to see inside.

        Raises `PlanError` when the optimizer does not hold the model's present parameters.
        """
        require_owned(self.optimizer, self.model)
        self._synchronize()
        start = time.perf_counter()
        loss = self.backward()
        norm = clip_grad_norm(self.model.parameters(), CLIP_NORM)
        self._set_learning_rate()
        self.optimizer.step()
        self.optimizer.zero_grad()
        mean = float(self._sum(loss))
        self._synchronize()
        return self._metrics(mean, norm, time.perf_counter() - start)

    def backward(self) -> Tensor:
        """Forward and backward of the next batch without an update.

        Returns this rank's part of the loss, a scalar: the parts of all ranks add up to the mean over
        the tokens of the step.
        """
        batch = self.batches.at(self.steps_done).to(self.device)
        tokens, loss = self._tokens(batch), torch.zeros((), device=self.device)
        for index, micro in enumerate(batch.split(self.accumulation.micro_batches)):
            if isinstance(self.model, FSDPModule):
                self.accumulation.prepare(self.model, index)
            part = self._loss(micro, tokens)
            (part * self.readers).backward()  # fully_shard divides the sum over readers by their number
            loss += part.detach()
        return loss

    def held_bytes(self) -> dict[str, int]:
        """Bytes that this rank holds now, by kind: parameters, gradients, optimizer state."""
        parameters = list(self.model.parameters())
        states = [value for entry in self.optimizer.state.values() for value in entry.values()]
        return {
            "parameters": sum(map(_bytes, parameters)),
            "gradients": sum(_bytes(p.grad) for p in parameters if p.grad is not None),
            "optimizer state": sum(map(_bytes, states)),
        }

    def evaluate(self, batches: int = 4) -> float:
        """Mean loss in nats per token over the first `batches` batches of the held-out files."""
        with torch.no_grad():
            whole = [self.held_out.at(index).to(self.device) for index in range(batches)]
            losses = [self._loss(batch, self._tokens(batch)) for batch in whole]
        self._reshard()
        return float(self._sum(torch.stack(losses).mean()))

    def full_weights(self) -> dict[str, Tensor]:
        """The whole model's parameters by name, on the CPU. A collective: every rank must call it."""
        return {
            name: (value.full_tensor() if isinstance(value, DTensor) else value).cpu().clone()
            for name, value in self.model.state_dict().items()
        }

    def _loss(self, batch: Batch, tokens: int) -> Tensor:
        """Cross-entropy of the batch, summed over its tokens, over the tokens of the whole step."""
        with torch.autocast(self.device.type, DTYPES[self.plan.dtype], enabled=self._autocasts):
            logits = self.model(batch.inputs)  # (B, T, V)
        total = F.cross_entropy(
            logits.float().flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORE, reduction="sum"
        )
        return total / tokens

    def _tokens(self, batch: Batch) -> int:
        """Targets of the step over all readers: known when windows are full, else counted."""
        if not self.batches.shortest:
            return batch.targets.numel() * self.readers
        return int(self._sum(torch.tensor(batch.tokens, device=self.device)))

    def _sum(self, number: Tensor) -> Tensor:
        """Add up over the ranks that read different data."""
        for name in range(self._data.ndim) if self._data else ():
            dist.all_reduce(number, group=self._data.get_group(name))
        return number

    def _reshard(self) -> None:
        """Free full weights that wait for a backward: after evaluation none comes."""
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    @property
    def _autocasts(self) -> bool:
        """Only one process needs autocast: on a mesh `fully_shard` casts each group."""
        return self.mesh is None and self.plan.dtype != "fp32"

    def _set_learning_rate(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self.preset.learning_rate_at(self.steps_done)

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def _metrics(self, loss: float, norm: float, seconds: float) -> StepMetrics:
        self.steps_done += 1
        rate = self.preset.tokens * flops_per_token(self.preset.model) / seconds
        peak, memory = peak_memory(self.device)
        mfu = rate / self.roof if self.roof else None
        return StepMetrics(self.steps_done, loss, norm, seconds, self.preset.tokens, rate, mfu, peak, memory)


def place_in(mesh: DeviceMesh) -> int:
    """This rank's place among the ranks of `mesh`, counted along its last dimension first."""
    place = 0
    for size, at in zip(mesh.shape, mesh.get_coordinate()):
        place = place * size + at
    return place


def _bytes(tensor: Tensor) -> int:
    """Bytes of the elements that live on this rank."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.numel() * local.element_size()
