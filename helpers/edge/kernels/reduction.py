"""One value from many: sum and maximum."""

import math
import struct
from enum import StrEnum
from typing import TYPE_CHECKING

from helpers.edge import shaders
from helpers.edge.kernels.family import Call, Family, require_arrays, require_power_of_two, require_shape

if TYPE_CHECKING:
    from helpers.edge.vulkan import Buffer, Device

MOST_PARTIALS = 1024
LEAST_EACH = 8  # values that an invocation should read before another workgroup is worth it


class Way(StrEnum):
    """How the invocations of a workgroup put their values together."""

    TREE = "tree"
    SUBGROUP = "subgroup"


class Operation(StrEnum):
    """What a reduction does."""

    SUM = "sum"
    MAXIMUM = "maximum"


class Reduction(Family):
    """Sum or maximum of a whole buffer, in one dispatch, or in two where it is long.

    way: through a tree in shared memory, or through subgroups. group: invocations of a workgroup,
    a power of two. NaN among the values makes a maximum undefined, as GLSL's `max` has it.
    """

    def __init__(self, device: "Device", way: str = Way.SUBGROUP, operation: str = Operation.SUM, group: int = 128):
        super().__init__(device)
        require_power_of_two("group", group)
        self.way, self.operation, self.group = Way(way), Operation(operation), group
        constants = {0: group, 1: list(Operation).index(self.operation)}
        self.kernel = device.kernel(shaders.spirv(f"reduce_{self.way}"), constants)
        self._partials: dict[int, Buffer] = {}

    def groups(self, n: int) -> int:
        """Workgroups of the first dispatch over n values."""
        return min(MOST_PARTIALS, -(-n // (self.group * LEAST_EACH)))

    def depth(self, n: int) -> int:
        """The longest chain of operations that a value passes through: for `bounds.sum_bound`.

        A subgroup's own order is the driver's, so that all its lanes count.
        """
        groups = self.groups(n)
        together = int(math.log2(self.group)) if self.way == Way.TREE else self.group
        first = -(-n // (groups * self.group)) + together
        return first if groups == 1 else first + -(-groups // self.group) + together

    def calls(self, x: "Buffer", result: "Buffer") -> tuple[Call, ...]:
        """x: fp32 of any shape. result: fp32 (1,)."""
        require_arrays("float32", x=x, result=result)
        require_shape("result", result, 1)
        n = x.nbytes // 4
        groups = self.groups(n)
        if groups == 1:
            return (self._call(1, x, result, n),)
        if groups not in self._partials:
            self._partials[groups] = self.device.buffer(groups)
        partials = self._partials[groups]
        return self._call(groups, x, partials, n), self._call(1, partials, result, groups)

    def _call(self, groups: int, x: "Buffer", result: "Buffer", n: int) -> Call:
        return Call(self.kernel, (groups,), (x, result), struct.pack("<I", n))
