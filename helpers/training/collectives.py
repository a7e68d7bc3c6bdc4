"""The collectives of a training step: predicted from the plan, and counted while it runs."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.training.loop import KEEP, REDUCE_EACH, Accumulation
from helpers.training.plan import DTYPES, ShardingPlan

KINDS = ("all_gather", "reduce_scatter", "all_reduce")


@dataclass(frozen=True)
class Collectives:
    """How often a rank took part in each collective."""

    all_gather: int
    reduce_scatter: int
    all_reduce: int = 0


@dataclass(frozen=True)
class Collective:
    """One kind of collective in a step of one rank.

    kind: `all_gather`, `reduce_scatter` or `all_reduce`. ranks: that take part. count: calls.
    bytes: of the whole tensors (an all-gather's result, the others' input), all calls together.
    """

    kind: str
    ranks: int
    count: int
    bytes: int


@dataclass(frozen=True)
class Activation:
    """What travels between tensor ranks: bytes of one (B, T, d) activation of a rank's share, and the blocks."""

    bytes: int
    blocks: int


def predict_collectives(
    groups: int, plan: ShardingPlan | None = None, accumulation: Accumulation | None = None
) -> Collectives:
    """The collectives of one step's forward and backward with `groups` groups, the root's among them.

    Each group is gathered before its forward: G. Backward gathers again what was resharded, which is
    every group but the root's: G − 1 more. Each group's gradients are reduced once: G. With M
    micro-batches all that happens M times, but for what the accumulation leaves undone. With replicas
    each reduced group is then added up over them, once a step: G all-reduces. What tensor
    parallelism and the loss need is not counted here.
    """
    plan, accumulation = plan or ShardingPlan(), accumulation or Accumulation()
    micro = accumulation.micro_batches
    again = 0 if plan.reshard_after_forward is False else groups - 1
    gathers = micro * (groups + again)
    if accumulation.mode == KEEP and micro > 1:
        # Backward gathers what forward freed; from then on the weights stay, and only forward frees them.
        gathers = groups + again + (micro - 1) * again
    elif plan.reshard_after_forward is False or groups == 1:
        gathers = micro * groups
    return Collectives(
        all_gather=gathers,
        reduce_scatter=groups * (micro if accumulation.mode == REDUCE_EACH else 1),
        all_reduce=groups if plan.replicas > 1 else 0,
    )


def predict_traffic(
    group_elements: Sequence[int],
    plan: ShardingPlan,
    shards: int,
    accumulation: Accumulation | None = None,
    activation: Activation | None = None,
) -> tuple[Collective, ...]:
    """The collectives of one step with their bytes, in the order of `KINDS` and of ranks.

    group_elements: per group, the elements of its parameters as they travel, the root's first
    (`padded_elements` reads them off a model). activation: what tensor parallelism adds up: four
    all-reduces a block, two forward and two backward. Recomputing repeats the first of forward; it
    stops before the second, whose sum backward does not need.
    """
    accumulation = accumulation or Accumulation()
    counts = predict_collectives(len(group_elements), plan, accumulation)
    root, rest = group_elements[0], sum(group_elements[1:])
    weight, gradient = DTYPES[plan.dtype].itemsize, DTYPES[plan.reduce_dtype].itemsize
    micro, others = accumulation.micro_batches, max(1, len(group_elements) - 1)
    first = micro * len(group_elements)
    if accumulation.mode == KEEP:  # backward leaves the weights gathered for the next forward
        first = len(group_elements)
    again = counts.all_gather - first
    roots = 1 if accumulation.mode == KEEP else micro
    found = [
        Collective("all_gather", shards, first, weight * (roots * root + (first - roots) * rest // others)),
        Collective("all_gather", _kept_on(plan, shards), again, weight * again * rest // others),
        Collective(
            "reduce_scatter",
            shards,
            counts.reduce_scatter,
            gradient * (root + rest) * counts.reduce_scatter // len(group_elements),
        ),
        Collective("all_reduce", plan.replicas, counts.all_reduce, gradient * (root + rest) // shards),
    ]
    if activation and plan.tensor_parallel > 1:
        calls = (5 if plan.recompute else 4) * activation.blocks * micro
        found.append(Collective("all_reduce", plan.tensor_parallel, calls, calls * activation.bytes // micro))
    return merged(found)


def _kept_on(plan: ShardingPlan, shards: int) -> int:
    """The ranks among which backward gathers: all of a shard group, or the few that kept the weights."""
    return shards if isinstance(plan.reshard_after_forward, bool) else plan.reshard_after_forward


def merged(collectives: Iterable[Collective]) -> tuple[Collective, ...]:
    """One `Collective` for each kind and number of ranks, without those that never ran."""
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for entry in collectives:
        key = (KINDS.index(entry.kind), entry.ranks)
        count, size = found.get(key, (0, 0))
        found[key] = (count + entry.count, size + entry.bytes)
    return tuple(
        Collective(KINDS[kind], ranks, *found[kind, ranks]) for kind, ranks in sorted(found) if found[kind, ranks][0]
    )


def padded_elements(model: nn.Module, shards: int) -> list[int]:
    """Elements of each group of a sharded model as they travel, the root's first.

    Dimension 0 of every parameter is rounded up to a multiple of `shards`; of a parameter that
    tensor ranks share, it is the part of one of them.
    """
    sizes: dict[int, int] = {}
    innermost = {}
    for number, group in enumerate(module for module in model.modules() if isinstance(module, FSDPModule)):
        # A parent comes before its children, so the innermost group is written last.
        innermost |= {id(parameter): (number, parameter) for parameter in group.parameters()}
    for number, parameter in innermost.values():
        rows, *columns = _shape_on_tensor_rank(parameter)
        sizes[number] = sizes.get(number, 0) + -(-rows // shards) * shards * math.prod(columns)
    return [sizes[number] for number in sorted(sizes)]


def _shape_on_tensor_rank(parameter: nn.Parameter) -> list[int]:
    shape = list(parameter.shape)
    mesh = parameter.device_mesh
    for name, size, place in zip(mesh.mesh_dim_names or (), mesh.shape, parameter.placements):
        if name == "tensor" and place.is_shard():
            shape[place.dim] //= size
    return shape


def count_collectives(work: Callable[[], object]) -> Collectives:
    """Run `work()` on this rank and count, with `CommDebugMode`, the collectives it starts."""
    with CommDebugMode() as mode:
        work()
    counts = {str(operator): count for operator, count in mode.get_comm_counts().items()}
    return Collectives(
        all_gather=_sum(counts, "allgather", "all_gather"),
        reduce_scatter=_sum(counts, "reduce_scatter"),
        all_reduce=_sum(counts, "allreduce", "all_reduce"),
    )


def _sum(counts: dict[str, int], *words: str) -> int:
    return sum(count for operator, count in counts.items() if any(word in operator for word in words))


OPERATORS = {
    "c10d::_allgather_base_": "all_gather",
    "c10d::_reduce_scatter_base_": "reduce_scatter",
    "c10d::allreduce_": "all_reduce",
    "_c10d_functional::all_gather_into_tensor": "all_gather",
    "_c10d_functional::reduce_scatter_tensor": "reduce_scatter",
    "_c10d_functional::all_reduce": "all_reduce",
}


class Recorder(TorchDispatchMode):
    """Records the collectives that this rank calls, with the bytes of the whole tensors.

    Use as a context; afterwards `collectives` holds one `Collective` for each kind and group size.
    """

    def __init__(self):
        super().__init__()
        self._calls: list[Collective] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(kind is DTensor for kind in types):
            return NotImplemented  # DTensor first, which then calls the collectives that it needs
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket._qualified_op_name
        if name in OPERATORS:
            whole = result if name == "_c10d_functional::all_gather_into_tensor" else _whole(OPERATORS[name], args)
            self._calls.append(Collective(OPERATORS[name], _ranks_of(args), 1, _bytes(whole)))
        return result

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """What was recorded, by kind and number of ranks."""
        return merged(self._calls)


def _ranks_of(args: tuple) -> int:
    """The size of the group that a c10d operator holds, or a functional one names last."""
    for arg in args:
        if isinstance(arg, torch.ScriptObject):
            return dist.ProcessGroup.unbox(arg).size()
    return dist.distributed_c10d._resolve_process_group(args[-1]).size()


def _whole(kind: str, args: tuple) -> object:
    """The whole tensor: an all-gather's result, a reduce-scatter's input, an all-reduce's list."""
    functional = isinstance(args[-1], str)
    return args[1] if kind == "reduce_scatter" and not functional else args[0]


def _bytes(tensors: object) -> int:
    tensors = tensors if isinstance(tensors, (list, tuple)) else [tensors]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
