"""The training loop: one class that steps a model on one process, or on the ranks of a mesh."""

import sys
import time
from dataclasses import asdict, dataclass

import psutil
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from helpers.measure import Quantity, measured
from helpers.training.data import Batch, Batches, standard_library
from helpers.training.model import build_model, flops_per_token
from helpers.training.plan import DTYPES, ShardingPlan, require_owned, shard
from helpers.training.presets import Preset

CLIP_NORM = 1.0


@dataclass(frozen=True)
class StepMetrics:
    """One step, the same on every rank but for `peak_bytes`.

    loss: cross-entropy in nats per token, averaged over all ranks' tokens, before the update.
    grad_norm: 2-norm of the whole gradient before clipping. seconds: wall time of the step on this
    rank. tokens: of all ranks. flop_per_second: model FLOP of all ranks per second. mfu: that over
    the machine's measured roof, or None without a roof. peak_bytes: `memory` says what it counts.
    """

    step: int
    loss: float
    grad_norm: float
    seconds: float
    tokens: int
    flop_per_second: float
    mfu: float | None
    peak_bytes: int
    memory: str

    @property
    def tokens_per_second(self) -> float:
        """Tokens of all ranks per second."""
        return self.tokens / self.seconds

    def quantities(self) -> dict[str, Quantity]:
        """The measured numbers with their units."""
        numbers = {
            "loss": measured(self.loss, "nats"),
            "tokens per second": measured(self.tokens_per_second, "tokens/s"),
            "step time": measured(self.seconds, "s"),
            self.memory: measured(self.peak_bytes, "B"),
        }
        return numbers if self.mfu is None else numbers | {"MFU": measured(100 * self.mfu, "%")}

    def to_json(self) -> dict:
        """A plain dict, as written to JSON lines."""
        return asdict(self) | {"tokens_per_second": self.tokens_per_second}

    def __str__(self) -> str:
        mfu = "" if self.mfu is None else f"  MFU {100 * self.mfu:5.1f} %"
        return (
            f"step {self.step:4d}  loss {self.loss:7.4f}  {self.tokens_per_second:9.0f} tokens/s  "
            f"{1e3 * self.seconds:7.1f} ms{mfu}  {self.memory} {self.peak_bytes / 2**20:.0f} MiB"
        )


class Trainer:
    """A `MiniLLM`, its data and its AdamW, ready to `step`.

    preset: sizes and learning rate; its batch is the batch of all ranks together. mesh: a 1-D
    mesh to shard over, or None for one process, which is the oracle of the sharded run. roof:
    FLOP/s that the machine can do, for the MFU. The same `seed` gives the same weights and data.
    Raises `PresetError` when the ranks do not divide the batch.
    """

    def __init__(
        self,
        preset: Preset,
        mesh: DeviceMesh | None = None,
        plan: ShardingPlan | None = None,
        *,
        seed: int = 0,
        roof: float | None = None,
        device: str | torch.device = "cpu",
    ):
        self.preset, self.mesh, self.plan = preset, mesh, plan or ShardingPlan()
        self.device, self.roof = torch.device(mesh.device_type if mesh else device), roof
        rank, world = (mesh.get_local_rank(), mesh.size()) if mesh else (0, 1)
        preset.batch_per_rank(world)
        text = standard_library()
        self.batches = Batches(text.train, preset.model.context, preset.batch, rank, world, seed)
        self.held_out = Batches(text.held_out, preset.model.context, preset.batch, rank, world, seed)
        self.model = build_model(preset.model, seed).to(self.device)
        if mesh:
            shard(self.model, mesh, self.plan)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=preset.learning_rate)
        self.steps_done = 0

    def step(self) -> StepMetrics:
        """Train on the next batch. Wrap a call of this in a profiler to see inside.

        Raises `PlanError` when the optimizer does not hold the model's present parameters.
        """
        require_owned(self.optimizer, self.model)
        self._synchronize()
        start = time.perf_counter()
        loss = self.backward()
        norm = self._clip()
        self._set_learning_rate()
        self.optimizer.step()
        self.optimizer.zero_grad()
        mean = self._mean(loss)
        self._synchronize()
        return self._metrics(mean, norm, time.perf_counter() - start)

    def backward(self) -> Tensor:
        """Forward and backward of the next batch without an update; this rank's loss, a scalar."""
        loss = self._loss(self.batches.at(self.steps_done).to(self.device))
        loss.backward()
        return loss.detach()

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
            losses = [self._loss(self.held_out.at(index).to(self.device)) for index in range(batches)]
        self._reshard()
        return self._mean(torch.stack(losses).mean())

    def full_weights(self) -> dict[str, Tensor]:
        """The whole model's parameters by name, on the CPU. A collective: every rank must call it."""
        return {
            name: (value.full_tensor() if isinstance(value, DTensor) else value).cpu().clone()
            for name, value in self.model.state_dict().items()
        }

    def _loss(self, batch: Batch) -> Tensor:
        with torch.autocast(self.device.type, DTYPES[self.plan.dtype], enabled=self._autocasts):
            logits = self.model(batch.inputs)  # (B, T, V)
        return F.cross_entropy(logits.float().flatten(0, 1), batch.targets.flatten())

    def _reshard(self) -> None:
        """Free full weights that wait for a backward: after evaluation none comes."""
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    @property
    def _autocasts(self) -> bool:
        """Only one process needs autocast: on a mesh `fully_shard` casts each group."""
        return self.mesh is None and self.plan.dtype != "fp32"

    def _clip(self) -> float:
        """Clip by the norm of the whole gradient; a sharded norm is partial until made full."""
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP_NORM)
        return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)

    def _set_learning_rate(self) -> None:
        share = min(1.0, (self.steps_done + 1) / self.preset.warmup_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = self.preset.learning_rate * share

    def _mean(self, loss: Tensor) -> float:
        """Average over the ranks, which all hold the same number of tokens."""
        if self.mesh:
            dist.all_reduce(loss, group=self.mesh.get_group())
            loss = loss / self.mesh.size()
        return float(loss)

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def _metrics(self, loss: float, norm: float, seconds: float) -> StepMetrics:
        self.steps_done += 1
        rate = self.preset.tokens * flops_per_token(self.preset.model) / seconds
        peak, memory = peak_memory(self.device)
        mfu = rate / self.roof if self.roof else None
        return StepMetrics(self.steps_done, loss, norm, seconds, self.preset.tokens, rate, mfu, peak, memory)


def _bytes(tensor: Tensor) -> int:
    """Bytes of the elements that live on this rank."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.numel() * local.element_size()


def peak_memory(device: torch.device) -> tuple[int, str]:
    """Bytes at the peak so far, and what they count.

    On CUDA the allocator's peak of this rank; elsewhere the peak resident set of the process, which
    holds Python and torch too.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device), "peak allocated"
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset, "peak process memory"
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, "peak process memory"
