"""The same calls through torch.mps.compile_shader, on a Mac with an Apple GPU.

Nothing in this module can be verified without a Mac: its tests run it against a stand-in with the
signature that torch's source gives (torch/csrc/mps/Module.cpp: `__call__(*args, threads, group_size,
arg_casts, error_buf_idx)`, keyword-only after the arguments). Two things that torch does and this module
relies on: an argument that is a tensor binds its buffer whatever the parameter's address space, and an
int becomes eight bytes.
"""

import platform
from collections.abc import Sequence

import numpy as np

from helpers.edge.metal import text
from helpers.edge.metal.arguments import Argument, grid_of, require_fit
from helpers.edge.metal.errors import ArgumentsError, KernelFault, MslCompileError
from helpers.edge.metal.library import Execution


def available() -> bool:
    """Whether this is a Mac whose torch can compile shaders. Elsewhere torch is not even imported."""
    if platform.system() != "Darwin":
        return False
    import torch

    return torch.backends.mps.is_available() and hasattr(torch.mps, "compile_shader")


class MacLibrary:
    """A text that Apple's compiler took; its kernels are its attributes."""

    def __init__(self, source: str):
        import torch

        text.check_rules(source)
        self.source, self.kernels = source, text.read_kernels(source)
        try:
            self.library = torch.mps.compile_shader(source)
        except (RuntimeError, SyntaxError) as error:
            raise MslCompileError(f"Apple's compiler said: {error}", mend="correct the text") from None

    def __getattr__(self, name: str) -> "MacKernel":
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in self.kernels:
            raise ArgumentsError(f"the text has no kernel {name}", mend=f"it has {', '.join(self.kernels)}")
        return MacKernel(self, self.kernels[name], getattr(self.library, name))

    def __dir__(self) -> list[str]:
        return list(self.kernels)


class MacKernel:
    """A kernel that the Apple GPU runs, on copies of the arrays: torch's MPS tensors are memory of their own."""

    def __init__(self, library: MacLibrary, signature: text.KernelText, compiled):
        self.library, self.text, self.compiled = library, signature, compiled

    @property
    def max_threads_per_threadgroup(self) -> int:
        """What the compiled pipeline allows."""
        return self.compiled.max_threads_per_threadgroup

    @property
    def thread_execution_width(self) -> int:
        """Lanes of a simdgroup."""
        return self.compiled.thread_execution_width

    @property
    def executed(self) -> str:
        """What runs the kernel, in words."""
        import torch

        return f"MSL by torch.mps ({torch.__version__}, macOS {platform.mac_ver()[0]})"

    def __call__(
        self,
        *arguments,
        threads: int | Sequence[int] | None = None,
        group_size: int | Sequence[int] | None = None,
        arg_casts: str | dict[int, str] | None = None,
    ) -> Execution:
        """Run the kernel and wait for its end; arguments and errors as for the stand-in's `Kernel`.

        A bfloat16 array has no NumPy dtype: pass its bits as uint16, they reach the kernel unchanged.
        """
        import torch

        passed = [Argument.of(value, place, arg_casts) for place, value in enumerate(arguments)]
        require_fit(self.text, passed)
        grid, group = grid_of(threads, group_size, passed)
        tensors = {}
        values = [self._value(value, argument, tensors) for value, argument in zip(arguments, passed)]
        try:
            self.compiled(*values, threads=grid, group_size=group, arg_casts=arg_casts)
            torch.mps.synchronize()
        except RuntimeError as error:
            raise KernelFault(
                f"torch.mps said: {error}", where=f"kernel {self.text.name}", mend="see above"
            ) from None
        for parameter, argument, value in zip(self.text.arguments, passed, values):
            if parameter.writable and argument.from_host:
                back = value.cpu().numpy().view(argument.array.dtype)
                argument.array[...] = back.reshape(argument.array.shape)
        groups = int(np.prod([-(-count // size) for count, size in zip(grid, group)]))
        return Execution(self.text.name, self.executed, grid, group, groups, self.thread_execution_width)

    def _value(self, value, argument: Argument, tensors: dict):
        """A tensor for an array or bytes, one for each array however often it is passed; numbers as they are."""
        if not argument.from_host and not isinstance(value, bytes):
            return list(value) if isinstance(value, tuple) else value
        import torch

        key = argument.array.ctypes.data
        if key not in tensors:
            bits = np.ascontiguousarray(argument.array)
            if bits.dtype.names or (bits.dtype.kind == "u" and bits.dtype != np.uint8):
                bits = bits.reshape(-1).view(np.uint8)  # torch has few unsigned dtypes on MPS; bits are bits
            tensors[key] = torch.from_numpy(bits.copy()).to("mps")
        return tensors[key]
