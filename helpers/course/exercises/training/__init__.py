"""The exercises of the training track, a module for each lab."""

from helpers.course.exercises.training.by_hand import EXERCISES as BY_HAND
from helpers.course.exercises.training.ledger import EXERCISES as LEDGER
from helpers.course.exercises.training.museum import EXERCISES as MUSEUM
from helpers.course.exercises.training.planning import EXERCISES as PLANNING
from helpers.course.exercises.training.ring import EXERCISES as RING
from helpers.course.exercises.training.shard_rows import EXERCISES as SHARD_ROWS
from helpers.course.exercises.training.shard_rows import rows_kept

__all__ = ["EXERCISES", "rows_kept"]

EXERCISES = (*SHARD_ROWS, *RING, *LEDGER, *BY_HAND, *MUSEUM, *PLANNING)
