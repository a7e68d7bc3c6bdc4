"""The oracles of the exercises agree with something that did not come from this course."""

import numpy as np

from helpers.course.exercises.edge.saxpy import _cases
from helpers.course.exercises.profiling import Product, work_counted


def test_work_of_a_product_is_counted_as_a_textbook_counts_it():
    flop, moved = work_counted(Product(3, 5, 7, "bfloat16", 1.0, 1.0))
    assert (flop, moved) == (2 * 3 * 5 * 7, 2 * (15 + 35 + 21))


def test_fp32_numpy_stays_within_the_bound_of_saxpy():
    for case in _cases(0, 64):
        n = case.n
        got = np.float32(case.alpha) * case.x[:n] + case.y[:n]
        assert got.dtype == np.float32 and np.all(np.abs(got - case.truth) <= case.bound)
        nudged = got * np.float32(1 + 1e-6)
        assert np.any(np.abs(nudged - case.truth) > case.bound)
