"""What would go wrong silently or by a hang, found before and after sharding, with the mend."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from helpers.errors import CourseError


class PlanError(CourseError):
    """A plan that cannot be applied, or a model that sharding would break."""


def require_shardable(model: nn.Module, groups: Sequence[nn.Module], mesh: DeviceMesh) -> None:
    """Raise `PlanError` for what `fully_shard` would reject late, obscurely, or not at all.

    The mesh must be on the device of the model. Masters are fp32 (so each group has one dtype), have
    at least one dimension and are contiguous. No weight belongs to two groups. All ranks hold the
    same weights, unless the model is on the meta device.
    """
    _require_device(model, mesh)
    for name, parameter in model.named_parameters():
        _require_parameter(name, parameter)
    _require_untied(model, groups)
    if not any(parameter.is_meta for parameter in model.parameters()):
        require_same_weights(model)


def _require_device(model: nn.Module, mesh: DeviceMesh) -> None:
    device = next(model.parameters()).device.type
    if device not in ("meta", mesh.device_type):
        raise PlanError(
            f"the model is on {device}, the mesh on {mesh.device_type}",
            where="before fully_shard",
            mend=f"move the model first: model.to({mesh.device_type!r})",
        )


def _require_parameter(name: str, parameter: nn.Parameter) -> None:
    if parameter.dtype != torch.float32:
        raise PlanError(
            f"the master weight is {str(parameter.dtype).removeprefix('torch.')}",
            where=name,
            mend="keep weights in fp32 and set the plan's dtype: fully_shard casts for compute",
        )
    if parameter.dim() == 0:
        raise PlanError("a scalar has no rows to shard", where=name, mend="give it the shape (1,)")
    if not parameter.is_contiguous():
        raise PlanError("the weight is not contiguous", where=name, mend="store it with .contiguous()")


def _require_untied(model: nn.Module, groups: Sequence[nn.Module]) -> None:
    owner: dict[int, tuple[str, int]] = {}
    inside = {id(module): number for number, group in enumerate(groups, 1) for module in group.modules()}
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            place, group = f"{path}.{name}".lstrip("."), inside.get(id(module), 0)
            first, its_group = owner.setdefault(id(parameter), (place, group))
            if group != its_group:
                raise PlanError(
                    f"{place} and {first} are one weight in two groups",
                    where="before fully_shard",
                    mend="leave both modules to one group: fully_shard([one, other])",
                )


def require_same_weights(model: nn.Module) -> None:
    """Raise `PlanError` on every rank when the ranks hold different weights. A collective."""
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    own = torch.stack([fingerprint(parameter) for parameter in model.parameters()]).to(device)
    everyone = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, own)
    for rank, other in enumerate(everyone):
        differing = (other != everyone[0]).nonzero()
        if len(differing):
            name = list(dict(model.named_parameters()))[int(differing[0])]
            raise PlanError(
                f"rank {rank} holds other weights than rank 0",
                where=f"before fully_shard, first in {name}",
                mend="build the model with the same seed on every rank",
            )


def fingerprint(tensor: torch.Tensor) -> torch.Tensor:
    """An int64 scalar that depends on every bit of an fp32 tensor and on its place."""
    bits = tensor.detach().contiguous().flatten().view(torch.int32).long()
    places = torch.arange(1, len(bits) + 1, device=bits.device)
    return (bits * (2 * places + 1)).sum()  # int64 arithmetic wraps, which is all a fingerprint needs


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
