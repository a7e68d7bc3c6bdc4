"""The course's kernel families on a Vulkan device: each checks its buffers, then runs or is recorded."""

from helpers.edge.kernels.attention import AttentionDecode
from helpers.edge.kernels.batched import DenseMatmul, DequantMatmul
from helpers.edge.kernels.family import ArgumentError, Call, Family
from helpers.edge.kernels.ladder import (
    CooperativeMatmul,
    Matmul,
    Rung,
    Traffic,
    cooperative_shapes,
    why_no_cooperative,
    why_not,
)
from helpers.edge.kernels.norm import RmsNorm, RmsNormResidual
from helpers.edge.kernels.quantised import DequantMatvec, Quantised, quantise
from helpers.edge.kernels.reduction import Operation, Reduction, Way
from helpers.edge.kernels.scan import Scan
from helpers.edge.kernels.softmax import Softmax
from helpers.edge.kernels.vector import Saxpy

__all__ = [
    "ArgumentError",
    "AttentionDecode",
    "Call",
    "CooperativeMatmul",
    "DenseMatmul",
    "DequantMatmul",
    "DequantMatvec",
    "Family",
    "Matmul",
    "Operation",
    "Quantised",
    "Reduction",
    "RmsNorm",
    "RmsNormResidual",
    "Rung",
    "Saxpy",
    "Scan",
    "Softmax",
    "Traffic",
    "Way",
    "cooperative_shapes",
    "quantise",
    "why_no_cooperative",
    "why_not",
]
