import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.measure import Origin, Quantity, measured, predicted, recorded, simulated
from helpers.measure.quantity import QuantityError

SCALES = {
    "s": {"s": 1, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9},
    "B": {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40},
    "FLOP/s": {"FLOP/s": 1, "kFLOP/s": 1e3, "MFLOP/s": 1e6, "GFLOP/s": 1e9, "TFLOP/s": 1e12, "PFLOP/s": 1e15},
}


@pytest.mark.parametrize("unit", SCALES)
@given(exponent=st.floats(-8, 17), digits=st.floats(1, 9.99))
def test_the_text_says_the_value_to_three_digits(unit, exponent, digits):
    value = digits * 10 ** int(exponent)
    number, printed = measured(value, unit).text.split()
    assert float(number) * SCALES[unit][printed] == pytest.approx(value, rel=5.1e-3)


def test_the_stamp_names_the_origin():
    assert str(measured(0.0123, "s")) == "12.3 ms [measured]"
    assert str(simulated(4, "", "4 gloo ranks")) == "4 [simulated: 4 gloo ranks]"
    assert str(predicted(2**20, "B", "4 N / W")) == "1 MiB [predicted: 4 N / W]"
    where = recorded(9.89e14, "FLOP/s", device="H200", date="2026-10-02", tool="ncu 2026.3")
    assert str(where) == "989 TFLOP/s [recorded: H200, 2026-10-02, ncu 2026.3]"


def test_a_recorded_number_without_a_source_is_refused():
    with pytest.raises(QuantityError, match="where it was recorded"):
        Quantity(1.0, "s", Origin.RECORDED)


def test_an_unknown_origin_is_refused():
    with pytest.raises(ValueError, match="guessed"):
        Quantity(1.0, "s", "guessed")


@given(
    value=st.floats(allow_nan=True, allow_infinity=True),
    unit=st.sampled_from(["s", "B", "FLOP/s", "", "%", "tokens/s"]),
)
def test_nbval_sanitises_exactly_the_measured_form(value, unit):
    lines = (Path(__file__).parents[2] / "nbval_sanitize.cfg").read_text().splitlines()
    pattern = next(line.removeprefix("regex: ") for line in lines if line.startswith("regex:"))
    text = f"step: {measured(value, unit)}; {predicted(1, 'B')} and 17 rows"
    cleaned = re.sub(pattern, "<measured>", text)
    assert cleaned == f"step: <measured>; {predicted(1, 'B')} and 17 rows"


def test_what_is_not_finite_prints():
    assert measured(math.nan, "s").text == "nan s"
    assert (predicted(math.inf, "s").text, predicted(-math.inf, "B").text) == ("∞ s", "-∞ B")


@given(value=st.floats(allow_nan=True, allow_infinity=True) | st.integers())
def test_a_quantity_is_read_back_from_strict_json(value):
    text = json.dumps(measured(value, "s").to_json(), allow_nan=False)
    back = Quantity.from_json(json.loads(text) | {"name": "step"})
    assert back == measured(value, "s") or (math.isnan(value) and math.isnan(back.value))


@pytest.mark.parametrize("value", ["3", None, 1j, [1.0], 10**400])
def test_a_value_that_is_no_number_is_refused(value):
    with pytest.raises(QuantityError, match="is no number"):
        predicted(value, "s")


def test_a_number_of_numpy_or_torch_reaches_json():
    for value in (np.float32(0.5), torch.tensor(0.5), np.int64(3)):
        assert json.loads(json.dumps(measured(value, "s").to_json()))["value"] == value
