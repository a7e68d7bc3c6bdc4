"""What this machine has, as counts that a target's requirements are compared with."""

import os
from dataclasses import asdict, dataclass, replace

import psutil


@dataclass(frozen=True)
class Capabilities:
    """Counts of what a machine has.

    cuda: CUDA devices. mps: 1 on an Apple GPU that torch can use. vulkan: Vulkan devices of any
    kind. vulkan_gpu: those that are not a CPU driver. cores: logical processors that this process
    may use. memory_gib: physical memory in GiB.
    """

    cuda: int = 0
    mps: int = 0
    vulkan: int = 0
    vulkan_gpu: int = 0
    cores: int = 1
    memory_gib: int = 0

    def count(self, name: str) -> int:
        """The count called `name`; `KeyError` for a name that is not a capability."""
        return asdict(self)[name]

    def with_vulkan(self, kinds: tuple[str, ...]) -> "Capabilities":
        """The same machine with its Vulkan devices counted; `kinds` are `cpu`, `discrete`, ….

        The ground floor does not know Vulkan: whoever stands above both passes the devices in.
        """
        gpus = sum(kind != "cpu" for kind in kinds)
        return replace(self, vulkan=len(kinds), vulkan_gpu=gpus)


def usable_cores() -> int:
    """Logical processors that this process may run on (its affinity, not the whole machine)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def probe() -> Capabilities:
    """Count what torch and the operating system report; Vulkan is left at 0 (see `with_vulkan`).

    Nothing here initialises CUDA: `device_count` asks the driver only, so ranks may still be
    started afterwards.
    """
    import torch

    return Capabilities(
        cuda=torch.cuda.device_count(),
        mps=int(torch.backends.mps.is_available()),
        cores=usable_cores(),
        memory_gib=psutil.virtual_memory().total // 2**30,
    )
