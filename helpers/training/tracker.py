"""The ledger by torch's FSDPMemTracker: the real sharding code, its tensors counted as they come and go."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.nn import functional as F

NAMES = {
    "Sharded Param": "parameters",
    "Sharded Grad": "gradients",
    "Unsharded Grad": "temporaries",
    "OptState": "optimizer",
    "Unsharded Param": "unsharded group",
    "All Gather": "all-gather buffer",
    "Reduce Scatter": "reduce-scatter buffer",
    "Activation": "activations",
    "Temp": "temporaries",
    "Buffer": "parameters",
    "Inputs": "temporaries",
    "Total": "total",
}
Counts = dict[tuple[str, str], int]


def track_step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor, device: str = "cpu") -> Counts:
    """Bytes by (phase, category) of one training step of a sharded `MiniLLM` on `tokens` (B, T) int64.

    Take a step before, so that the optimizer has its state. The tensors may be fake. Unsharded
    gradients count as temporaries.
    """
    tracker = FSDPMemTracker(model, optimizer)
    found: Counts = {}
    before_head: dict[str, int] = {}

    def note(phase: str, kind: str = "current") -> None:
        for name, size in _snapshot(tracker, device, kind).items():
            key = (phase, NAMES[name])
            found[key] = found.get(key, 0) + size

    with tracker:
        note("between steps")
        hook = model.head.register_forward_pre_hook(lambda *_: before_head.update(_snapshot(tracker, device)))
        loss = F.cross_entropy(_logits(model, tokens), tokens.flatten())
        hook.remove()
        note("after forward")
        loss.backward()
        note("after backward")
        optimizer.step()
        optimizer.zero_grad()
    note("peak", "peak")
    logits = found["after forward", "activations"] - before_head["Activation"]
    found["after forward", "logits"] = logits
    found["after forward", "activations"] -= logits
    return {key: size for key, size in found.items() if size}


def _logits(model: nn.Module, tokens: Tensor) -> Tensor:
    """(B·T, V) fp32; a function of its own, so that nothing else keeps the compute dtype's copy."""
    return model(tokens).float().flatten(0, 1)


def _snapshot(tracker: FSDPMemTracker, device: str, kind: str = "current") -> dict[str, int]:
    """Bytes by the tracker's own names, on one type of device."""
    found: dict[str, int] = {}
    for place, sizes in tracker.get_tracker_snapshot(kind).items():
        if place.type == device:
            for name, size in sizes.items():
                key = getattr(name, "value", name)
                found[key] = found.get(key, 0) + size
    return found


@contextmanager
def fused_norms(model: nn.Module) -> Iterator[None]:
    """Let every RMSNorm of a model of *fake* tensors keep for backward what CUDA's fused kernel keeps.

    That is its input and one fp32 number a token; the CPU's composed RMSNorm keeps more. The values
    mean nothing: fake tensors have none.
    """
    norms = [module for module in model.modules() if isinstance(module, nn.RMSNorm)]
    for norm in norms:
        norm.forward = lambda x, norm=norm: _FusedNorm.apply(x, norm.weight)
    try:
        yield
    finally:
        for norm in norms:
            del norm.forward


class _FusedNorm(torch.autograd.Function):
    @staticmethod
    def forward(context, x, weight):
        statistics = torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device)
        context.save_for_backward(x, weight, statistics)
        return torch.empty_like(x)

    @staticmethod
    def backward(context, gradient):
        x, weight, _ = context.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)
