"""The hand-over of a model: distances by brute force, and what may not pass for a right answer."""

import math

import numpy as np
import pytest

from helpers.course.handover import HEADERS, Answer, HandoverError, handover_rows, parted_at
from helpers.measure import Origin

TRUTH = np.random.default_rng(0).standard_normal((5, 7))


def answer(logits=None, truth=TRUTH, limit=1e-6, **options):
    return Answer("shaders", TRUTH.astype(np.float32) if logits is None else logits, truth, limit, **options)


def test_the_error_is_the_largest_distance_of_any_logit():
    logits = TRUTH.astype(np.float32)
    logits[3, 2] += 0.25
    by_hand = max(abs(float(a) - b) for a, b in zip(logits.ravel(), TRUTH.ravel()))
    assert answer(logits).error.value == by_hand
    assert answer().error.value == max(abs(float(np.float32(b)) - b) for b in TRUTH.ravel())


@pytest.mark.parametrize(("limit", "within"), [(0.25, True), (np.nextafter(0.25, 0), False)])
def test_the_limit_itself_is_within(limit, within):
    whole = np.zeros((1, 1))
    assert answer(whole + 0.25, whole, limit).within is within


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_a_logit_that_is_no_number_is_never_within(wrong):
    logits = TRUTH.astype(np.float32)
    logits[0, 0] = wrong
    assert not answer(logits, limit=1e9).within


def test_rounded_weights_are_right_by_themselves_and_away_from_the_trained_ones():
    rounded = TRUTH + 0.5
    trained, served = answer(), answer(rounded.astype(np.float32), rounded)
    assert served.within and served.moved_from(trained).value == pytest.approx(0.5, abs=1e-6)
    computed_wrongly = answer(rounded + 0.25, rounded)
    assert not computed_wrongly.within and computed_wrongly.moved_from(trained).value == pytest.approx(0.75)
    assert not answer(rounded.astype(np.float32)).within


def test_choices_are_counted_token_by_token():
    logits = TRUTH.copy()
    for row in (1, 4):
        logits[row, TRUTH[row].argmin()] = TRUTH.max() + 1
    assert answer(logits).same_choices(answer()) == 3
    assert answer().same_choices(answer(np.roll(TRUTH, 1, axis=1))) == 5  # what was chosen right, not by the first


def test_a_row_for_each_runtime_says_where_its_numbers_come_from():
    logits = TRUTH.astype(np.float32)
    wrong = np.roll(logits, 1, axis=1)
    rows = handover_rows([answer(), answer(wrong), answer(stand_in="NumPy")])
    assert all(len(row) == len(HEADERS) for row in rows)
    assert [row[3] for row in rows] == ["yes", "NO", "yes"]
    assert [row[1].origin for row in rows] == [Origin.MEASURED, Origin.MEASURED, Origin.SIMULATED]
    assert rows[2][1].source == rows[2][4].source == "NumPy" and rows[0][2].origin is Origin.PREDICTED
    assert [row[5] for row in rows] == ["5 of 5", "0 of 5", "5 of 5"]


@pytest.mark.parametrize(
    ("logits", "truth", "found"),
    [
        (TRUTH[:4], TRUTH, r"\(4, 7\) beside a truth of \(5, 7\)"),
        (TRUTH[0], TRUTH[0], r"logits of \(7,\)"),
        (TRUTH[:0], TRUTH[:0], r"logits of \(0, 7\)"),
        (TRUTH, TRUTH.astype(np.float32), "float32"),
    ],
)
def test_what_cannot_be_compared_is_refused(logits, truth, found):
    with pytest.raises(HandoverError, match=found):
        answer(logits, truth)


def test_answers_to_texts_of_different_lengths_are_refused_and_so_are_none():
    short = answer(TRUTH[:3], TRUTH[:3])
    for rows in ([answer(), short], [short, answer()]):
        with pytest.raises(HandoverError, match="same text"):
            handover_rows(rows)
    with pytest.raises(HandoverError, match="no answer"):
        handover_rows([])


@pytest.mark.parametrize(
    ("one", "other", "place"),
    [
        (b"", b"", None),
        (b"abc", b"abc", None),
        (b"abc", b"abd", 2),
        (b"xbc", b"abc", 0),
        (b"ab", b"abc", 2),
        (b"abc", b"", 0),
    ],
)
def test_texts_part_at_the_first_token_that_differs(one, other, place):
    assert parted_at(one, other) == parted_at(list(other), list(one)) == place
