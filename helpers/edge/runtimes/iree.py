"""IREE: the step as MLIR, compiled ahead of time for the CPU or for Vulkan, and called through its runtime."""

from collections.abc import Mapping
from functools import partial

import numpy as np

from helpers.edge.decode import DecoderConfig
from helpers.edge.runtimes.runtime import Runtime, Session
from helpers.edge.runtimes.step import HostCache, step_module

INSTALL = "pip install iree-base-compiler==3.13.0 iree-base-runtime==3.13.0 iree-turbine==3.9.0 torch==2.13.0"
TARGETS = {
    "local-task": (
        "--iree-hal-target-device=local",
        "--iree-hal-local-target-device-backends=llvm-cpu",
        "--iree-llvmcpu-target-cpu=host",
    ),
    "vulkan": ("--iree-hal-target-device=vulkan",),
}


class IreeSession(Session):
    """A compiled module whose shape is the whole context. driver: of IREE's, one of `TARGETS`."""

    def __init__(self, config: DecoderConfig, parameters: Mapping[str, np.ndarray], driver: str):
        from iree import runtime

        super().__init__(config)
        self._cache = HostCache(config, parameters)
        self._module = runtime.load_vm_flatbuffer(self._compiled(parameters, TARGETS[driver]), driver=driver)

    def _compiled(self, parameters: Mapping[str, np.ndarray], flags: tuple[str, ...]) -> bytes:
        import torch
        from iree import compiler
        from iree.turbine import aot

        inputs = tuple(torch.from_numpy(array) for array in self._cache.inputs(0, 0))
        exported = aot.export(step_module(self.config, parameters), args=inputs)
        return compiler.compile_str(str(exported.mlir_module), input_type="auto", extra_args=list(flags))

    def _step(self, token: int, place: int) -> np.ndarray:
        logits, keys, values = (x.to_host() for x in self._module.main(*self._cache.inputs(token, place)))
        self._cache.keep(place, keys, values)
        return np.array(logits)


def _runtime(name: str, driver: str) -> Runtime:
    modules = ("torch", "iree.compiler", "iree.runtime", "iree.turbine")
    return Runtime(name, modules, "iree-base-runtime", INSTALL, partial(IreeSession, driver=driver))


CPU = _runtime("IREE, CPU", "local-task")
VULKAN = _runtime("IREE, Vulkan", "vulkan")
