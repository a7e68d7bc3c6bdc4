"""Metal: the course's kernels in MSL, run by torch.mps on a Mac and by a stand-in on a CPU elsewhere.

The stand-in compiles the text with g++ and a header in place of Apple's library, and runs it thread by
thread. It shows what a text computes, that it stays inside its buffers, that its barriers order what they
must, and what it moves. It does not show that Apple's compiler takes the text, what fast math makes of it,
which lane holds which element of a matrix, or anything about speed. It knows no textures, samplers,
function constants, templates of kernels, or threadgroup memory that the host sizes. Where lanes branch, they
meet again at the call that stands first in the text.
"""

from helpers.edge.metal.errors import (
    ArgumentsError,
    DataRace,
    Deadline,
    DivergentBarrier,
    KernelFault,
    MetalError,
    MslCompileError,
    NotMetal,
    OutOfBounds,
    ReceiptError,
    ShimUnavailable,
    ThreadgroupMemory,
    UninitialisedRead,
    UnknownName,
)
from helpers.edge.metal.library import Execution, Kernel, Library, Traffic, compile_shader, shim_library

__all__ = [
    "ArgumentsError",
    "DataRace",
    "Deadline",
    "DivergentBarrier",
    "Execution",
    "Kernel",
    "KernelFault",
    "Library",
    "MetalError",
    "MslCompileError",
    "NotMetal",
    "OutOfBounds",
    "ReceiptError",
    "ShimUnavailable",
    "ThreadgroupMemory",
    "Traffic",
    "UninitialisedRead",
    "UnknownName",
    "compile_shader",
    "shim_library",
]
