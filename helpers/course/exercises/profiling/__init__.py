"""The exercises of the profiling track, a module for each lab."""

from helpers.course.exercises.profiling.attention_work import EXERCISES as ATTENTION_WORK
from helpers.course.exercises.profiling.attention_work import Attention, attention_counted
from helpers.course.exercises.profiling.break_rule import EXERCISES as BREAK_RULE
from helpers.course.exercises.profiling.diagnose import EXERCISES as DIAGNOSE
from helpers.course.exercises.profiling.fuse_norm import EXERCISES as FUSE_NORM
from helpers.course.exercises.profiling.join import EXERCISES as JOIN
from helpers.course.exercises.profiling.three_faults import EXERCISES as THREE_FAULTS
from helpers.course.exercises.profiling.work_and_roof import EXERCISES as WORK_AND_ROOF
from helpers.course.exercises.profiling.work_and_roof import Product, work_counted

__all__ = ["EXERCISES", "Attention", "Product", "attention_counted", "work_counted"]

EXERCISES = (
    *WORK_AND_ROOF,
    *THREE_FAULTS,
    *ATTENTION_WORK,
    *DIAGNOSE,
    *BREAK_RULE,
    *FUSE_NORM,
    *JOIN,
)
