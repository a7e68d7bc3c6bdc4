"""The exercises of the edge track, a module for each lab."""

from helpers.course.exercises.edge.saxpy import EXERCISES as SAXPY

EXERCISES = (*SAXPY,)
