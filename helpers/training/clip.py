"""Clipping by the norm of the whole gradient, whatever meshes its parts lie on."""

from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.tensor import DTensor


def clip_grad_norm(parameters: Iterable[nn.Parameter], largest: float) -> float:
    """Scale all gradients by one factor so that their common 2-norm is at most `largest`, in place.

    Returns the norm before. Gradients on different meshes (tensor parallel and not) cannot be
    stacked, so each mesh gives its own norm, made full, and the squares add up.
    """
    parameters = [parameter for parameter in parameters if parameter.grad is not None]
    meshes: dict[object, list] = {}
    for parameter in parameters:
        mesh = parameter.grad.device_mesh if isinstance(parameter.grad, DTensor) else None
        meshes.setdefault(mesh, []).append(parameter.grad)
    norms = [_full(torch.nn.utils.get_total_norm(gradients)).float() for gradients in meshes.values()]
    norm = torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros(())
    for mesh in meshes:
        mine = [p for p in parameters if (p.grad.device_mesh if isinstance(p.grad, DTensor) else None) == mesh]
        torch.nn.utils.clip_grads_with_norm_(mine, largest, norm)
    return float(norm)


def _full(norm: torch.Tensor) -> torch.Tensor:
    """A sharded norm is partial until it is made full: a collective."""
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
