"""How a model is sharded: a plan as data, applied in one function."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from helpers.errors import CourseError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class PlanError(CourseError):
    """A plan that cannot be applied, or an optimizer that would not see the sharded parameters."""


@dataclass(frozen=True)
class ShardingPlan:
    """What `fully_shard` is called with.

    wrap_blocks: one group per block and one for the rest; False makes the whole model one group.
    reshard_after_forward: free a block's full weights after its forward, and gather them again
    in backward. The root group keeps its weights in either case. dtype: compute and all-gather
    dtype; the sharded masters stay as they are, and gradients are reduced in fp32.
    """

    wrap_blocks: bool = True
    reshard_after_forward: bool = True
    dtype: str = "fp32"

    def __post_init__(self):
        if self.dtype not in DTYPES:
            raise PlanError(f"dtype is {self.dtype!r}", where="ShardingPlan", mend=f"use one of {', '.join(DTYPES)}")

    @property
    def precision(self) -> MixedPrecisionPolicy:
        """The policy; `reduce_dtype` is always set, for its default changed between versions."""
        return MixedPrecisionPolicy(param_dtype=DTYPES[self.dtype], reduce_dtype=torch.float32)


def shard(model: nn.Module, mesh: DeviceMesh, plan: ShardingPlan) -> nn.Module:
    """Shard `model` in place over `mesh`, bottom up, and return it.

    Each block becomes one group: one all-gather before it computes, one reduce-scatter of its
    gradients. What no block holds belongs to the root's group. Every rank must pass the same
    weights, because `fully_shard` keeps a slice of what it finds and sends nothing; `PlanError`
    names the rank that differs.
    """
    require_same_weights(model, mesh)
    if plan.wrap_blocks:
        for block in model.blocks:
            fully_shard(block, mesh=mesh, reshard_after_forward=plan.reshard_after_forward, mp_policy=plan.precision)
    return fully_shard(model, mesh=mesh, mp_policy=plan.precision)


def require_same_weights(model: nn.Module, mesh: DeviceMesh) -> None:
    """Raise `PlanError` on every rank when the ranks of `mesh` hold different weights."""
    sums = [parameter.detach().double().abs().sum() for parameter in model.parameters()]
    own = torch.stack(sums).to(mesh.device_type)
    everyone = [torch.empty_like(own) for _ in range(mesh.size())]
    dist.all_gather(everyone, own, group=mesh.get_group())
    different = [rank for rank, other in enumerate(everyone) if not torch.equal(other, everyone[0])]
    if different:
        raise PlanError(
            f"rank {different[0]} holds other weights than rank 0",
            where="before fully_shard",
            mend="build the model with the same seed on every rank",
        )


def require_owned(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Raise `PlanError` unless the optimizer steps every parameter that `model` has now.

    `fully_shard` replaces each parameter. An optimizer made before it holds the old ones: it runs
    without an error and trains nothing.
    """
    owned = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    missing = [name for name, parameter in model.named_parameters() if id(parameter) not in owned]
    if missing:
        raise PlanError(
            f"the optimizer does not hold {len(missing)} of the model's parameters",
            where=missing[0],
            mend="shard the model first, then make the optimizer from model.parameters()",
        )
