"""The exercises of the edge track, a module for each lab."""

from helpers.course.exercises.edge.climb import EXERCISES as CLIMB
from helpers.course.exercises.edge.cooperative_gemm import EXERCISES as COOPERATIVE_GEMM
from helpers.course.exercises.edge.fused_softmax import EXERCISES as FUSED_SOFTMAX
from helpers.course.exercises.edge.int4_matvec import EXERCISES as INT4_MATVEC
from helpers.course.exercises.edge.matrix_choice import EXERCISES as MATRIX_CHOICE
from helpers.course.exercises.edge.saxpy import EXERCISES as SAXPY
from helpers.course.exercises.edge.zero_copy_filter import EXERCISES as ZERO_COPY

EXERCISES = (
    *SAXPY,
    *ZERO_COPY,
    *CLIMB,
    *FUSED_SOFTMAX,
    *INT4_MATVEC,
    *MATRIX_CHOICE,
    *COOPERATIVE_GEMM,
)
