"""The exercises of the training track, a module for each lab."""

from helpers.course.exercises.training.museum import EXERCISES as MUSEUM
from helpers.course.exercises.training.shard_rows import EXERCISES as SHARD_ROWS
from helpers.course.exercises.training.shard_rows import rows_kept

__all__ = ["EXERCISES", "rows_kept"]

EXERCISES = (*SHARD_ROWS, *MUSEUM)
