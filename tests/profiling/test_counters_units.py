import math
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.profiling.counters.record import CounterError
from helpers.profiling.counters.units import base, factor, number

SAME = [
    [("9,589,248", "ns"), ("9589.248", "us"), ("9589.248", "usecond"), ("9.589248", "ms"), ("9.589248", "msecond")],
    [
        ("1.21", "cycle/nsecond"),
        ("1.21", "Ghz"),
        ("1,210", "Mhz"),
        ("1,210,000,000", "hz"),
        ("1210", "cycle/usecond"),
    ],
    [("661.05", "Gbyte/second"), ("661.05", "Gbyte/s"), ("661,050", "Mbyte/s"), ("661,050,000,000", "byte/second")],
    [("54,207,744", "byte"), ("54.207744", "Mbyte"), ("54207.744", "Kbyte"), ("0.054207744", "Gbyte")],
    [("1.02", "Kbyte/block"), ("1020", "byte/block")],
]


@pytest.mark.parametrize("ways", SAME, ids=lambda ways: ways[0][1])
def test_every_spelling_of_one_value_is_the_same(ways):
    assert {base(text, unit) for text, unit in ways} == {base(*ways[-1])}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("54,207,744", 54207744.0),
        ("100.39", 100.39),
        ("1e-05", 1e-5),
        ("4 (1; 2; 1)", 4.0),
        (" 0 ", 0.0),
        ("CachePreferNone", None),
        ("", None),
        (".", None),
        ("1.234.567", None),
        ("12,34", None),
        ("(64, 64, 1)", None),
        ("٣", None),
        ("1e999", None),
    ],
)
def test_numbers_as_the_tool_prints_them(text, expected):
    assert number(text) == expected


@pytest.mark.parametrize("text", ["n/a", "nan", "(!) nan", "(!) n/a", "-nan(ind)", "NaN"])
def test_a_failed_counter_is_nan(text):
    assert math.isnan(base(text, "%"))


def test_the_clocks_of_the_device_are_in_kilohertz():
    assert base("1695000", "", "device__attribute_clock_rate") == 1.695e9
    assert base("9751000", "", "device__attribute_memory_clock_rate") == 9.751e9
    assert base("1695", "Mhz", "device__attribute_clock_rate") == 1.695e9
    assert base("384", "", "device__attribute_global_memory_bus_width") == 384


def test_what_cannot_be_scaled_is_refused():
    with pytest.raises(CounterError, match="'Mfoo' is not known"):
        factor("Mfoo", "some.metric")
    with pytest.raises(CounterError, match=r"'1\.234\.567' ns is no number") as caught:
        base("1.234.567", "ns", "gpu__time_duration.sum")
    assert base("PreferNone", "", "launch__func_cache_config") is None
    with pytest.raises(CounterError, match="no number"):
        base("1x.5", "", "launch__waves_per_multiprocessor")
    assert "LC_ALL=C" in caught.value.mend and caught.value.where == "gpu__time_duration.sum"


@given(
    st.integers(-(10**12), 10**12), st.integers(0, 3), st.sampled_from([("us", 6), ("ns", 9), ("ms", 3), ("%", 0)])
)
def test_scaling_is_exact_in_decimal(digits, places, unit):
    text = f"{Decimal(digits).scaleb(-places):,f}"
    assert base(text, unit[0]) == pytest.approx(float(Fraction(digits, 10 ** (places + unit[1]))), rel=1e-15)


@given(st.text(max_size=12), st.text(max_size=8))
def test_any_cell_is_a_number_a_text_or_a_named_error(text, unit):
    try:
        value = base(text, unit)
    except CounterError:
        return
    assert value is None or isinstance(value, float)
