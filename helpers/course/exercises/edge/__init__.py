"""The exercises of the edge track, a module for each lab."""

from helpers.course.exercises.edge.climb import EXERCISES as CLIMB
from helpers.course.exercises.edge.saxpy import EXERCISES as SAXPY
from helpers.course.exercises.edge.zero_copy_filter import EXERCISES as ZERO_COPY

EXERCISES = (*SAXPY, *ZERO_COPY, *CLIMB)
