"""From the meta device to real shards: no rank ever holds the whole model, and nothing stays uninitialised."""

import itertools

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from helpers.training.model import owners
from helpers.training.plan_guards import PlanError, fingerprint

SENTINEL = float("nan")


def materialise(model: nn.Module, device: str, seed: int) -> nn.Module:
    """Give a sharded model on the meta device its memory and its first weights, in place.

    Every rank draws each weight whole, one after another, with the same random numbers as
    `build_model(config, seed)`, and keeps its shard: the weights are those of one process, bit for
    bit, and the peak is the shards and one whole weight. Raises `PlanError` when a weight or buffer
    stayed uninitialised, or when ranks that should differ hold the same shard.
    """
    model.to_empty(device=device)
    fill_with_sentinel(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for path, module in owners(model):
            _initialise(path, module, device)
    require_initialised(model)
    require_distinct_shards(model)
    return model


def _initialise(path: str, module: nn.Module, device: str) -> None:
    """Initialise the parameters that one module owns, whole, and copy this rank's part of each.

    The random numbers are drawn on the CPU on every device, so that a seed means the same weights.
    """
    sharded = dict(module.named_parameters(recurse=False))
    whole = {name: nn.Parameter(torch.empty(parameter.shape)) for name, parameter in sharded.items()}
    module._parameters.update(whole)
    try:
        module.reset_parameters()
    finally:
        module._parameters.update(sharded)
    with torch.no_grad():
        for name, parameter in sharded.items():
            _keep_part(parameter, whole[name].detach().to(device))


def _keep_part(parameter: nn.Parameter, whole: Tensor) -> None:
    if not isinstance(parameter, DTensor):
        parameter.copy_(whole)
        return
    part = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
    parameter.to_local().copy_(part.to_local())


def fill_with_sentinel(model: nn.Module) -> None:
    """Overwrite every floating-point parameter and buffer with NaN, the value no initialisation leaves."""
    with torch.no_grad():
        for tensor in itertools.chain(model.parameters(), model.buffers()):
            if tensor.is_floating_point():
                local(tensor).fill_(SENTINEL)


def require_initialised(model: nn.Module) -> None:
    """Raise `PlanError` for the parameters and buffers that still hold the sentinel, or any NaN."""
    named = itertools.chain(model.named_parameters(), model.named_buffers())
    left = [name for name, tensor in named if tensor.is_floating_point() and local(tensor).isnan().any()]
    if left:
        raise PlanError(
            f"{len(left)} weights were never initialised after to_empty",
            where=", ".join(left[:3]),
            mend="call reset_parameters of every module that owns parameters, and set buffers anew",
        )


def require_distinct_shards(model: nn.Module) -> None:
    """Raise `PlanError` when two ranks hold the same shard of a random weight. A collective.

    Initialising DTensors on the CPU does that: each rank draws the same numbers into its own part.
    Constant weights (norms) are alike everywhere, and are left out.
    """
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    names, own = [], []
    for name, parameter in model.named_parameters():
        if isinstance(parameter, DTensor) and any(place.is_shard() for place in parameter.placements):
            part = local(parameter)
            random = part.numel() > 1 and bool((part != part.flatten()[0]).any())
            names.append(name)
            own.append(fingerprint(part).to(device) if random else torch.tensor(0, device=device))
    if not own:
        return
    everyone = [torch.empty(len(own), dtype=torch.long, device=device) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, torch.stack(own))
    _compare(model, names, everyone)


def _compare(model: nn.Module, names: list[str], everyone: list[Tensor]) -> None:
    parameters = dict(model.named_parameters())
    for index, name in enumerate(names):
        group = shard_peers(parameters[name])
        seen = [int(everyone[rank][index]) for rank in group]
        twice = [rank for place, rank in enumerate(group) if seen[place] and seen[place] in seen[:place]]
        if twice:
            raise PlanError(
                f"rank {twice[0]} holds the same shard as another rank",
                where=name,
                mend="initialise whole weights and keep a part (materialise), or broadcast them from rank 0",
            )


def shard_peers(parameter: DTensor) -> list[int]:
    """The ranks that hold different parts of `parameter`: this rank's replicas are left out."""
    mesh, ranks = parameter.device_mesh, parameter.device_mesh.mesh
    here = mesh.get_coordinate()
    index = tuple(slice(None) if place.is_shard() else at for place, at in zip(parameter.placements, here))
    return ranks[index].flatten().tolist()


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that lives on this rank."""
    return tensor.detach().to_local() if isinstance(tensor, DTensor) else tensor.detach()
