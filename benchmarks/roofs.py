"""Our measured GEMM roof beside NumPy's on the same cores: prints a ratio, asserts nothing.

python benchmarks/roofs.py
"""

import numpy as np
import torch

from helpers.hardware.roofs import gemm_roof, triad_roof
from helpers.measure import Table, measured, time_call


def main() -> None:
    """Measure fp32 products of three sizes with torch and with NumPy, and the triad."""
    rows = []
    for size in (256, 1024, 2048):
        a, b = np.random.default_rng(0).random((2, size, size), dtype=np.float32)
        ours = gemm_roof(size).rate
        theirs = measured(2 * size**3 / time_call(lambda a=a, b=b: a @ b).best.value, "FLOP/s")
        rows.append((f"{size}³", ours, theirs, measured(ours.value / theirs.value, "")))
    print(f"{torch.get_num_threads()} threads", Table(("GEMM", "torch", "NumPy", "ratio"), tuple(rows)), sep="\n")
    print("triad, 3 × 64 MiB:", triad_roof(64).rate)


if __name__ == "__main__":
    main()
