"""ExecuTorch: the step exported once, what a delegate can take handed to it, and a `.pte` program of the rest."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from helpers.edge.decode import DecoderConfig
from helpers.edge.runtimes.runtime import ExportedOnly, Runtime, Session
from helpers.edge.runtimes.step import HostCache, step_module

INSTALL = "pip install executorch==1.5.1 torch==2.13.0"


class ExecutorchSession(Session):
    """A program whose shape is the whole context. delegate: the name under which the program asks for it.

    Raises `ExportedOnly` when the installed package has no such back end.
    """

    def __init__(
        self,
        config: DecoderConfig,
        parameters: Mapping[str, np.ndarray],
        delegate: str,
        partitioner: Callable[[], object],
    ):
        from executorch.runtime import Runtime as Executor

        executor = Executor.get()
        there = executor.backend_registry.registered_backend_names
        super().__init__(config)
        if delegate not in there:
            program = _export(_first_block(config, parameters), partitioner())
            raise ExportedOnly(
                f"a .pte of {len(program.buffer)} bytes with the first block, {_taken(program)} by {delegate};"
                f" this package runs {', '.join(sorted(there))}",
                where="ExecuTorch",
                mend=f"run the .pte on a device, in a runtime that was built with {delegate}",
            )
        self._cache = HostCache(config, parameters)
        self._program = executor.load_program(_export((config, parameters), partitioner()).buffer)
        self._method = self._program.load_method("forward")

    def _step(self, token: int, place: int) -> np.ndarray:
        logits, keys, values = self._method.execute(_tensors(self._cache.inputs(token, place)))
        self._cache.keep(place, keys.numpy(), values.numpy())
        return logits.numpy().copy()


def _export(model: tuple[DecoderConfig, Mapping[str, np.ndarray]], partitioner: object):
    """The `ExecutorchProgramManager` of one step."""
    import torch
    from executorch.exir import to_edge_transform_and_lower

    inputs = _tensors(HostCache(*model).inputs(0, 0))
    exported = torch.export.export(step_module(*model), inputs)
    return to_edge_transform_and_lower(exported, partitioner=[partitioner]).to_executorch()


def _first_block(
    config: DecoderConfig, parameters: Mapping[str, np.ndarray]
) -> tuple[DecoderConfig, dict[str, np.ndarray]]:
    """The model with one block: the others have the same operators, and exporting takes a while."""
    kept = {name: array for name, array in parameters.items() if not re.match(r"blocks\.[1-9]", name)}
    return replace(config, blocks=1), kept


def _taken(program) -> str:
    """How much of the program its delegate took, in words."""
    nodes = program.exported_program().graph_module.graph.nodes
    targets = [str(node.target) for node in nodes if node.op == "call_function"]
    left = sorted({target for target in targets if target.startswith(("aten", "dim_order"))})
    return f"all but {', '.join(left)} taken" if left else "all of it taken"


def _tensors(arrays: tuple[np.ndarray, ...]) -> tuple:
    import torch

    return tuple(torch.from_numpy(array) for array in arrays)


def _xnnpack() -> object:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    return XnnpackPartitioner()


def _vulkan() -> object:
    from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanPartitioner

    return VulkanPartitioner()


def _core_ml() -> object:
    from executorch.backends.apple.coreml.partition import CoreMLPartitioner

    return CoreMLPartitioner()


def _runtime(name: str, delegate: str, partitioner: Callable[[], object], *modules: str) -> Runtime:
    start = partial(ExecutorchSession, delegate=delegate, partitioner=partitioner)
    return Runtime(f"ExecuTorch, {name}", ("torch", "executorch", *modules), "executorch", INSTALL, start)


XNNPACK = _runtime("XNNPACK", "XnnpackBackend", _xnnpack)
VULKAN = _runtime("Vulkan", "VulkanBackend", _vulkan)
CORE_ML = _runtime("Core ML", "CoreMLBackend", _core_ml, "coremltools")
