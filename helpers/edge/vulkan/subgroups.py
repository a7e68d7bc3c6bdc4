"""Does a driver tell the truth about its subgroups? A tiny shader counts.

A kernel that takes the advertised size on trust leaves out a part of its work, silently, when the
subgroups are smaller (google/uVkCompute issue 43: a quarter of the data was written).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from helpers.edge.vulkan.device import Device

SPIRV = Path(__file__).with_name("subgroup_probe.spv")
INVOCATIONS = 128


class SubgroupWarning(UserWarning):
    """A driver whose subgroups are not what it advertises."""


@dataclass(frozen=True)
class SubgroupProbe:
    """What 128 invocations saw.

    advertised: the driver's word. built_in: `gl_SubgroupSize` inside the shader. counted: the
    most invocations that were together in one subgroup, by ballot. absent: why nothing was run, or "".
    """

    advertised: int
    built_in: int
    counted: int
    absent: str = ""

    @property
    def honest(self) -> bool:
        """Whether all three agree; True where nothing could be run."""
        return bool(self.absent) or self.advertised == self.built_in == self.counted

    def __str__(self) -> str:
        if self.absent:
            return f"advertised {self.advertised}, not counted: {self.absent}"
        return f"advertised {self.advertised}, gl_SubgroupSize {self.built_in}, counted {self.counted}"


def probe_subgroups(device: "Device") -> SubgroupProbe:
    """Run the probe; it needs the abilities `subgroup_basic` and `subgroup_ballot`."""
    advertised = device.info.subgroup_size
    absent = device.info.why_not("subgroup_basic") or device.info.why_not("subgroup_ballot")
    if absent:
        return SubgroupProbe(advertised, 0, 0, absent)
    seen = device.buffer((INVOCATIONS, 2), np.uint32)
    device.kernel(SPIRV.read_bytes()).run((1,), [seen])
    built_in, counted = seen.array().max(axis=0)
    seen.free()
    return SubgroupProbe(advertised, int(built_in), int(counted))
