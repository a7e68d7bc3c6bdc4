"""The kernels whose counters a recording holds: a program of its own, so that ncu can start it.

python -m helpers.course.record_kernels NAME [DEVICE]
"""

import sys
from collections.abc import Callable

REPEATS = 16
SIZE = 4096


def _gemm(dtype: str, off: int) -> Callable:
    """A square product whose sides are `off` elements beyond a multiple of 128."""

    def build(torch, device: str, size: int) -> Callable:
        kind = getattr(torch, dtype)
        a, b = (torch.randn(size + off, size + off, device=device, dtype=kind) for _ in range(2))
        return lambda: a @ b

    return build


def _attention(torch, device: str, size: int) -> Callable:
    shape = (4, 16, size // 4, 64)
    q, k, v = (torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in range(3))
    return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def _norm(compiled: bool) -> Callable:
    """RMSNorm written out, as a framework runs it operator by operator, or fused by torch.compile."""

    def build(torch, device: str, size: int) -> Callable:
        x, weight = torch.randn(size, size, device=device), torch.ones(size, device=device)

        def norm(x):
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight

        work = torch.compile(norm) if compiled else norm
        return lambda: work(x)

    return build


def _linear(rows: int) -> Callable:
    """One layer's product for `rows` tokens: one is decode, many are prefill."""

    def build(torch, device: str, size: int) -> Callable:
        weight = torch.randn(size, size, device=device, dtype=torch.bfloat16)
        x = torch.randn(rows, size, device=device, dtype=torch.bfloat16)
        return lambda: x @ weight.T

    return build


WORKLOADS = {
    "gemm fp32": _gemm("float32", 0),
    "gemm bf16": _gemm("bfloat16", 0),
    "gemm fp16": _gemm("float16", 0),
    "gemm bf16, one element too many": _gemm("bfloat16", 1),
    "attention": _attention,
    "norm, eager": _norm(False),
    "norm, compiled": _norm(True),
    "decode": _linear(1),
    "prefill": _linear(2048),
}


def run(name: str, device: str = "cuda", size: int = SIZE, repeats: int = REPEATS):
    """Run one workload `repeats` times and return its last result. Raises `KeyError` for an unknown name."""
    import torch

    torch.manual_seed(0)
    work = WORKLOADS[name](torch, device, size)
    for _ in range(repeats):
        result = work()
    if device == "cuda":
        torch.cuda.synchronize()
    return result


if __name__ == "__main__":
    run(*sys.argv[1:3])
