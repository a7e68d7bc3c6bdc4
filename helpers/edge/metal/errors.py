"""What may go wrong with a Metal kernel, each by name."""

from helpers.errors import CourseError


class MetalError(CourseError):
    """Anything that goes wrong in `helpers.edge.metal`."""


class ShimUnavailable(MetalError):
    """This machine cannot run MSL: no Apple GPU, and no g++ that the stand-in can use."""


class MslCompileError(MetalError):
    """MSL that does not compile; `where` names the line."""


class UnknownName(MslCompileError):
    """A name that the text does not declare, and that Metal does not have or the stand-in lacks."""


class NotMetal(MslCompileError):
    """C++ that g++ would take and Metal's compiler would refuse, as a pointer without an address space."""


class ArgumentsError(MetalError):
    """Arguments that do not fit the kernel's parameters, or a grid that cannot be dispatched."""


class KernelFault(MetalError):
    """A kernel that did something wrong while it ran; the arrays that it was given are unchanged."""


class OutOfBounds(KernelFault):
    """A read or write outside of a buffer or of a threadgroup variable."""


class DataRace(KernelFault):
    """Two threads use the same element, one of them writes, and no barrier orders them."""


class UninitialisedRead(KernelFault):
    """A thread reads threadgroup memory that no thread of its threadgroup has written."""


class DivergentBarrier(KernelFault):
    """A barrier that some threads of the group reach and others never do."""


class Deadline(KernelFault):
    """A kernel that did not end in the time it was given."""


class ThreadgroupMemory(KernelFault):
    """Threadgroup variables that are larger than a threadgroup's memory together."""


class ReceiptError(MetalError):
    """A receipt that cannot be written or read."""
