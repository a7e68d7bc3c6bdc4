"""What training.5 gives to the learner: a parameter cut into rows, and the loop over a model's layers."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn

from helpers.errors import CourseError
from helpers.training.ranks import Ranks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHARDABLE = (nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm)


class ByHandError(CourseError):
    """A model that this way of sharding does not cover."""


@dataclass(frozen=True)
class Shard:
    """One parameter of R rows on one of W ranks.

    rows: (ceil(R/W), …) fp32 parameter with memory of its own: this rank's rows, and zeros where the rank
    reaches beyond row R. The optimizer steps it. padded: (W · ceil(R/W), …) in the compute dtype: room for
    the rows of all ranks, one rank after the other; its storage is empty until somebody resizes it. whole:
    (R, …), the first R rows of `padded`, in the same storage, as a parameter: what the layer computes with,
    and what autograd gives a gradient.
    """

    rows: nn.Parameter
    padded: Tensor
    whole: nn.Parameter


ShardParameter = Callable[[nn.Module, str, Shard], None]


def cut(parameter: Tensor, compute_dtype: torch.dtype | None = None) -> Shard:
    """This rank's `Shard` of `parameter` (R, …); nothing travels.

    compute_dtype: of `padded` and `whole`; None takes the parameter's own.
    """
    ranks, rank = dist.get_world_size(), dist.get_rank()
    most = -(-len(parameter) // ranks)
    full = pad(parameter.detach(), ranks * most)
    padded = torch.empty_like(full, dtype=compute_dtype or full.dtype)
    # .data: what is gathered into `padded` later is no change of `whole` that autograd would refuse.
    whole = nn.Parameter(padded.data[: len(parameter)])
    padded.untyped_storage().resize_(0)
    return Shard(nn.Parameter(full[rank * most : (rank + 1) * most].clone()), padded, whole)


def pad(tensor: Tensor, rows: int) -> Tensor:
    """`tensor` (R, …) with zeros below, (rows, …); the tensor itself when it has as many."""
    if len(tensor) == rows:
        return tensor
    return torch.cat([tensor, tensor.new_zeros(rows - len(tensor), *tensor.shape[1:])])


def shard_model(
    model: nn.Module, shard_parameter: ShardParameter, compute_dtype: torch.dtype | None = None
) -> nn.Module:
    """Put this rank's rows in the place of each parameter of `model`; returns the model.

    For each parameter `layer.name` it calls `shard_parameter(layer, name, shard)`, which has the whole there
    while the layer computes. Layers get their floating inputs in `compute_dtype` (None leaves them). Every
    rank must come with the same weights: none is sent. The ranks are those of the default process group.
    Raises `ByHandError` for what is not covered: tied parameters, which two layers would gather and free,
    frozen ones, whose gradient never comes to say that backward is done, and layers of other kinds.
    """
    found = list(owned(model))
    for layer in dict.fromkeys(layer for layer, _ in found):
        if compute_dtype is not None:
            layer.register_forward_pre_hook(lambda _, inputs: tuple(_cast(each, compute_dtype) for each in inputs))
    for layer, name in found:
        shard = cut(getattr(layer, name), compute_dtype)
        setattr(layer, name, shard.rows)
        shard_parameter(layer, name, shard)
    return model


def _cast(value: object, dtype: torch.dtype) -> object:
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


def before_backward(layer: nn.Module, hook: Callable[[], object]) -> None:
    """Call `hook()` in every backward before `layer` computes its gradients; its result is dropped.

    It is a hook of the output tensor. `register_full_backward_pre_hook` would add nodes of its own to the graph;
    autograd then adds up gradients in another order, and the last bits change.
    """

    def call(_):
        hook()

    def hang(_, inputs, output):
        if output.requires_grad:
            output.register_hook(call)

    layer.register_forward_hook(hang)


def owned(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """(layer, name) of every parameter of `model`; errors as `shard_model`."""
    seen: dict[int, str] = {}
    for path, layer in model.named_modules():
        for name, parameter in layer.named_parameters(recurse=False):
            where = f"{path}.{name}".removeprefix(".")
            if not isinstance(layer, SHARDABLE):
                kinds = ", ".join(kind.__name__ for kind in SHARDABLE)
                raise ByHandError(f"a {type(layer).__name__} owns a parameter", where=where, mend=f"use {kinds} only")
            if not parameter.requires_grad:
                raise ByHandError("a frozen parameter", where=where, mend="train it, or keep it out of the model")
            if id(parameter) in seen:
                raise ByHandError(
                    f"a parameter tied to {seen[id(parameter)]}",
                    where=where,
                    mend="give each layer its own parameter",
                )
            seen[id(parameter)] = where
            yield layer, name


def whole_parameters(model: nn.Module, rows: dict[str, int]) -> dict[str, Tensor]:
    """The parameters of a sharded model, gathered, by name, on every rank; every rank must call it.

    rows: how many each has, by name, since a rank does not know what its last rows are.
    """
    gathered = {}
    for name, parameter in model.named_parameters():
        parts = [torch.empty_like(parameter) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, parameter.detach())
        gathered[name] = torch.cat(parts)[: rows[name]]
    return gathered


def run_written(ranks: Ranks, function: Callable, *arguments) -> list:
    """`ranks.run(function, *arguments)`, whose `NotImplementedError` comes out as it is and leaves the ranks open.

    For functions that call an exercise: on an unwritten one every rank stops at the same place.
    """
    results = ranks.run(_attempt, function, arguments)
    missing = [result.words for result in results if isinstance(result, _Unwritten)]
    if missing:
        raise NotImplementedError(missing[0])
    return results


@dataclass(frozen=True)
class _Unwritten:
    words: str


def _attempt(function: Callable, arguments: tuple) -> object:
    try:
        return function(*arguments)
    except NotImplementedError as error:
        return _Unwritten(str(error))


def memory_figure(traces: dict[str, list[int]]) -> "Figure":
    """Live bytes after each operation of a forward and backward, a chart for each title, on one scale."""
    from matplotlib import pyplot

    figure, all_axes = pyplot.subplots(
        1, len(traces), figsize=(4.4 * len(traces), 3.2), sharey=True, layout="constrained"
    )
    for axes, (title, trace) in zip(all_axes, traces.items()):
        axes.fill_between(range(len(trace)), [size / 1024 for size in trace], step="post", color="#9ecae1")
        axes.step(range(len(trace)), [size / 1024 for size in trace], where="post", color="#1f5fa8", linewidth=0.8)
        axes.set(title=title, xlabel="operations of forward and backward", ylim=(0, None))
        axes.grid(alpha=0.3)
    all_axes[0].set_ylabel("live on one rank, KiB")
    return figure
