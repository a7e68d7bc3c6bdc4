"""The exercises of the profiling track, a module for each lab."""

from helpers.course.exercises.profiling.work_and_roof import EXERCISES as WORK_AND_ROOF
from helpers.course.exercises.profiling.work_and_roof import Product, work_counted

__all__ = ["EXERCISES", "Product", "work_counted"]

EXERCISES = (*WORK_AND_ROOF,)
