"""Our measured roofs beside the best that NumPy reaches on the same cores: prints ratios, asserts nothing.

python benchmarks/roofs.py
"""

import numpy as np
import torch

from helpers.hardware.roofs import Roof, cache_roofs, gemm_dtypes, gemm_roof, triad_roof
from helpers.measure import Quantity, Table, measured, time_call

NUMPY = {"fp64": np.float64, "fp32": np.float32}
SIZES = (512, 1024)
ROUNDS = 2


def numpy_gemm(size: int, dtype: str) -> Quantity | None:
    """NumPy's product of two matrices, best of many runs; None for a dtype that its BLAS lacks."""
    if dtype not in NUMPY:
        return None
    a, b = np.random.default_rng(0).random((2, size, size)).astype(NUMPY[dtype])
    out = np.empty_like(a)
    runs = time_call(lambda: np.matmul(a, b, out=out), repeats=max(8, int(2e10 / size**3)))
    return measured(2 * size**3 / runs.best.value, "FLOP/s")


def gemm_rows() -> list[tuple[object, ...]]:
    """Of each dtype and size the best of some rounds, ours and NumPy's in turn, so that both meet the same load."""
    rows = []
    for dtype in gemm_dtypes():
        for size in SIZES:
            ours, theirs = [], []
            for _ in range(ROUNDS):
                ours.append(gemm_roof(size, dtype))
                theirs.append(numpy_gemm(size, dtype))
            best = max(ours, key=lambda roof: roof.rate.value)
            other = max((rate for rate in theirs if rate), key=lambda rate: rate.value, default=None)
            ratio = measured(best.rate.value / other.value, "") if other else "–"
            rows.append((f"{dtype} {size}³", best.rate, other or "–", ratio, f"{100 * best.share:.0f} %"))
    return rows


def memory_rows() -> list[tuple[object, ...]]:
    """The triad, NumPy's triad, and the read roofs of each level by one core and by all."""
    b, c = np.random.default_rng(0).random((2, 2**24), dtype=np.float32)
    a = np.empty_like(b)

    def numpy_triad() -> None:
        np.multiply(c, np.float32(3), out=a)
        np.add(a, b, out=a)

    theirs = measured(3 * b.nbytes / time_call(numpy_triad, repeats=10).best.value, "B/s")
    rows = [_memory("triad 3 × 64 MiB", triad_roof(64)), ("NumPy's triad, in two passes", theirs, "–")]
    for threads in (1, torch.get_num_threads()):
        for level in cache_roofs(threads=threads).levels:
            rows.append(_memory(f"read {level.name}, {threads} threads", level.roof))
    return rows


def _memory(name: str, roof: Roof) -> tuple[object, ...]:
    return name, roof.rate, f"{100 * roof.share:.0f} %"


def main() -> None:
    """Measure both tables and print them."""
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, NumPy {np.__version__}")
    print(Table(("GEMM", "ours (torch)", "NumPy", "ratio", "of the processors"), tuple(gemm_rows())))
    print(Table(("memory", "rate", "of the processors"), tuple(memory_rows())))


if __name__ == "__main__":
    main()
