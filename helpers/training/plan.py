"""How a model is sharded: a plan as data, applied in one function."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

from helpers.training.plan_guards import PlanError, require_shardable

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
WRAPS = ("model", "block", "linear")


@dataclass(frozen=True)
class ShardingPlan:
    """What becomes of a model on a mesh; every default is the plain case.

    wrap: what forms a group of its own, beside the root's: nothing (`model`), each `block`, or each
    `linear` layer of the blocks. reshard_after_forward: free a group's full weights after its
    forward and gather them again in backward; a number keeps them on that many ranks instead. The
    root group keeps its weights in any case. dtype: of compute and all-gather; masters stay fp32.
    reduce_dtype: of the reduce-scatter; always set, for torch's default changed between versions.
    replicas: HSDP, that many copies of the sharded model. tensor_parallel: ranks that share each
    block's heads and hidden features. prefetch: groups that are gathered ahead, beside the implicit
    one. async_gather: let gathers run beside compute on the CPU too, where torch otherwise waits for
    each; GPUs always do. offload: shards live on the CPU. recompute: activation checkpointing of each block.
    compile: `torch.compile` of each block.
    """

    wrap: str = "block"
    reshard_after_forward: bool | int = True
    dtype: str = "fp32"
    reduce_dtype: str = "fp32"
    replicas: int = 1
    tensor_parallel: int = 1
    prefetch: int = 0
    async_gather: bool = False
    offload: bool = False
    recompute: bool = False
    compile: bool = False

    def __post_init__(self):
        for name, allowed in (("wrap", WRAPS), ("dtype", DTYPES), ("reduce_dtype", DTYPES)):
            if getattr(self, name) not in allowed:
                raise PlanError(
                    f"{name} is {getattr(self, name)!r}",
                    where="ShardingPlan",
                    mend=f"use one of {', '.join(allowed)}",
                )
        for name, least in (("replicas", 1), ("tensor_parallel", 1), ("prefetch", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise PlanError(f"{name} is {value!r}", where="ShardingPlan", mend=f"use a whole number from {least}")

    def shards(self, world: int) -> int:
        """Ranks that one copy of the model is sharded over; `PlanError` when `world` does not allow it."""
        others = self.replicas * self.tensor_parallel
        if world % others:
            raise PlanError(
                f"{world} ranks are not a multiple of {self.replicas} replicas × {self.tensor_parallel} tensor ranks",
                where="ShardingPlan",
                mend="choose replicas and tensor_parallel so that their product divides the ranks",
            )
        shards = world // others
        if self.reshard_after_forward not in (True, False) and shards % self.reshard_after_forward:
            raise PlanError(
                f"weights cannot stay on {self.reshard_after_forward} of {shards} ranks after forward",
                where="reshard_after_forward",
                mend="use True, False, or a divisor of the ranks that one copy is sharded over",
            )
        return shards

    def make_mesh(self, device: str, world: int) -> DeviceMesh:
        """The mesh over all ranks, with a dimension `shard` and, as needed, `replicate` and `tensor`.

        device: `cpu` or `cuda`; always explicit, for the default is the machine's accelerator,
        which gloo does not serve.
        """
        sizes = {"replicate": self.replicas, "shard": self.shards(world), "tensor": self.tensor_parallel}
        used = {name: size for name, size in sizes.items() if size > 1 or name == "shard"}
        return init_device_mesh(device, tuple(used.values()), mesh_dim_names=tuple(used))

    def data_mesh(self, mesh: DeviceMesh) -> DeviceMesh:
        """The part of `mesh` whose ranks read different data: `shard`, or `replicate` × `shard`.

        A 1-D mesh without names serves a plan that needs no other dimension. Raises `PlanError` when
        the mesh is not of this plan.
        """
        names = ("replicate", "shard") if self.replicas > 1 else ("shard",)
        if mesh.mesh_dim_names is None and mesh.ndim == 1 and self.replicas == self.tensor_parallel == 1:
            return mesh
        needed = set(names) | ({"tensor"} if self.tensor_parallel > 1 else set())
        if needed != set(mesh.mesh_dim_names or ()):
            raise PlanError(
                f"the mesh has the dimensions {mesh.mesh_dim_names}, the plan needs {sorted(needed)}",
                where="shard(model, mesh, plan)",
                mend="make the mesh with plan.make_mesh(device, world)",
            )
        return mesh[names]

    @property
    def precision(self) -> MixedPrecisionPolicy:
        """The policy that `fully_shard` is given."""
        return MixedPrecisionPolicy(param_dtype=DTYPES[self.dtype], reduce_dtype=DTYPES[self.reduce_dtype])


def shard(model: nn.Module, mesh: DeviceMesh, plan: ShardingPlan) -> nn.Module:
    """Apply `plan` to `model` in place, and return it. Make the optimizer afterwards.

    mesh: from `plan.make_mesh`. A model on the meta device stays there: call `materialise` next.
    Otherwise every rank must pass the same weights, because `fully_shard` keeps a slice of what it
    finds and sends nothing. Raises `PlanError` for a model or mesh that would fail, hang or train
    wrongly; see `plan_guards`.
    """
    groups = tuple(groups_of(model, plan.wrap))
    require_shardable(model, groups, plan.data_mesh(mesh))
    if plan.tensor_parallel > 1:
        share_blocks(model, mesh["tensor"])
    if plan.recompute:
        recompute_blocks(model)
    if plan.compile:
        for block in model.blocks:
            block.compile()
    options = {
        "mesh": plan.data_mesh(mesh),
        "mp_policy": plan.precision,
        "offload_policy": CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda")
        if plan.offload
        else OffloadPolicy(),
    }
    for group in groups_of(model, plan.wrap):
        fully_shard(group, reshard_after_forward=plan.reshard_after_forward, **options)
    fully_shard(model, **options)
    prefetch(groups_of(model, plan.wrap), plan.prefetch)
    if plan.async_gather:
        model._set_unshard_async_op(True)  # not public in torch 2.13
    return model


def groups_of(model: nn.Module, wrap: str) -> Iterator[nn.Module]:
    """The modules that become groups of their own, in the order of forward; the root is not among them."""
    for block in model.blocks if wrap != "model" else ():
        if wrap == "block":
            yield block
        else:
            yield from (module for module in block.modules() if isinstance(module, nn.Linear))


def share_blocks(model: nn.Module, mesh: DeviceMesh) -> None:
    """Tensor parallelism: each rank of `mesh` keeps some heads and some hidden features of every block.

    The first layers are cut by rows, the last by columns, so that one all-reduce ends each half of a
    block. Embeddings, norms and head stay whole on every rank.
    """
    heads = model.config.kv_heads or model.config.heads
    if heads % mesh.size():
        raise PlanError(
            f"{mesh.size()} tensor ranks do not divide {heads} heads",
            where="tensor_parallel",
            mend="use a number of ranks that divides the heads (of keys and values)",
        )
    by_rows = ["attention.query", "attention.key", "attention.value", "ffn.up"]
    by_rows += ["ffn.gate"] if model.config.gated else []
    whole = {"input_layouts": (Replicate(),), "desired_input_layouts": (Replicate(),)}
    for block in model.blocks:
        # One DTensor enters each half, so that the gradients of its layers add up before one all-reduce.
        cuts = {name: PrepareModuleInput(**whole) for name in ("attention", "ffn")}
        cuts |= {name: ColwiseParallel() for name in by_rows}
        cuts |= {name: RowwiseParallel() for name in ("attention.out", "ffn.down")}
        parallelize_module(block, mesh, cuts)


def recompute_blocks(model: nn.Module) -> None:
    """Keep each block's input only, and compute the rest again in backward."""
    for index, block in enumerate(model.blocks):
        model.blocks[index] = checkpoint_wrapper(block)


def prefetch(groups: Iterator[nn.Module], ahead: int) -> None:
    """Gather the next `ahead` groups while one computes, in forward and (in reverse) in backward."""
    order = list(groups)
    for index, group in enumerate(order):
        if ahead:
            group.set_modules_to_forward_prefetch(order[index + 1 : index + 1 + ahead])
            group.set_modules_to_backward_prefetch(order[max(0, index - ahead) : index][::-1])
