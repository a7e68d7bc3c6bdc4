import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.hardware.peaks import PeakError, bandwidth, peak
from helpers.measure import Quantity, Table
from helpers.profiling.remedies import amdahl
from helpers.profiling.whatif import Part, WhatIfError, what_if, what_if_table

GEMM = Part("gemm", 4e-3, flop=2e12, bytes=4e9, weights=2e9)
NORM = Part("norm", 2e-3, flop=4e9, bytes=3e9, matrix=False)
STEP = (GEMM, NORM)

positive = st.floats(1e-6, 1.0)
parts = st.lists(
    st.builds(
        lambda name, seconds, flop, moved, share, matrix, launches: Part(
            name, seconds, flop, moved, share * moved, matrix, launches
        ),
        *(st.sampled_from("abc"), positive, st.floats(1, 1e15), st.floats(1, 1e12)),
        *(st.floats(0, 1), st.booleans(), st.integers(1, 50)),
    ),
    min_size=1,
    max_size=5,
)
gpus = st.sampled_from(("A100 SXM 80GB", "H100 SXM", "B200 SXM", "RTX 4090"))


@given(parts=parts, gpu=gpus)
@settings(deadline=None)
def test_no_change_changes_nothing(parts, gpu):
    outcome = what_if(parts, gpu, "bf16")
    assert outcome.after == pytest.approx(outcome.before) and outcome.gain == pytest.approx(1)
    assert all(row.limiter == row.limiter_before for row in outcome.rows)


@given(parts=parts, gpu=gpus, other=gpus)
@settings(deadline=None)
def test_a_change_and_back_cancel(parts, gpu, other):
    there = what_if(parts, gpu, "bf16", to_gpu=other)
    moved = [
        Part(p.name, row.after, p.flop, p.bytes, p.weights, p.matrix, p.launches) for p, row in zip(parts, there.rows)
    ]
    assert what_if(moved, other, "bf16", to_gpu=gpu).after == pytest.approx(there.before)


@given(parts=parts, fuse=st.floats(0, 1), batch=st.floats(1, 64))
@settings(deadline=None)
def test_saving_bytes_and_sharing_weights_never_lose(parts, fuse, batch):
    assert what_if(parts, "H100 SXM", "bf16", fuse=fuse).gain >= 1 - 1e-9
    assert what_if(parts, "H100 SXM", "bf16", batch=batch).gain >= 1 - 1e-9
    assert what_if(parts, "H100 SXM", "bf16", to_weights="fp8").gain >= 1 - 1e-9


def by_hand(part, gpu, dtype, flop, moved):
    rate = peak(gpu, dtype if part.matrix else "fp32").value
    return max(flop / rate, moved / bandwidth(gpu).value, 3e-6)


def test_another_gpu_scales_each_part_by_its_own_roof():
    outcome = what_if(STEP, "A100 SXM 80GB", "bf16", to_gpu="H100 SXM")
    for part, row in zip(STEP, outcome.rows):
        ratio = by_hand(part, "H100 SXM", "bf16", part.flop, part.bytes) / by_hand(
            part, "A100 SXM 80GB", "bf16", part.flop, part.bytes
        )
        assert row.after == pytest.approx(part.seconds * ratio)
    assert outcome.rows[0].after == pytest.approx(4e-3 * 312 / 989)
    assert outcome.rows[1].after == pytest.approx(2e-3 * 2039 / 3350)
    assert [row.limiter for row in outcome.rows] == ["compute", "memory"]


def test_fusion_reaches_what_is_outside_the_matrix_units():
    outcome = what_if(STEP, "H100 SXM", "bf16", fuse=0.5)
    assert [row.after for row in outcome.rows] == [4e-3, 1e-3]
    assert outcome.gain == pytest.approx(amdahl(2 / 6, 2))
    assert what_if([GEMM], "H100 SXM", "bf16", fuse=0.5).notes == (
        "every part runs on matrix units: there is nothing that fusion would save",
    )


def test_a_narrower_dtype_moves_the_matrix_units_and_all_bytes():
    outcome = what_if(STEP, "H100 SXM", "bf16", to_dtype="fp8")
    assert outcome.rows[0].after == pytest.approx(4e-3 * max(2e12 / 1979e12, 2e9 / 3.35e12) / (2e12 / 989e12))
    assert outcome.rows[1].after == pytest.approx(1e-3)


def test_quantised_weights_help_what_memory_limits():
    decode = Part("decode", 2e-3, flop=16e9, bytes=16.1e9, weights=16e9)
    outcome = what_if([decode], "H100 SXM", "bf16", to_weights="int4")
    assert outcome.gain == pytest.approx(16.1 / 4.1)
    assert what_if([GEMM], "H100 SXM", "bf16", to_weights="int4").gain == pytest.approx(1)


def test_a_larger_batch_shares_the_weights_until_compute_limits():
    decode = Part("decode", 6e-3, flop=16e9, bytes=16.1e9, weights=16e9)
    outcome = what_if([decode], "H100 SXM", "bf16", batch=1000)
    assert outcome.rows[0].limiter_before == "memory" and outcome.limiter == "memory"
    assert outcome.gain == pytest.approx(1000 * 16.1e9 / (16e9 + 1000 * 0.1e9))
    lean = Part("decode", 6e-3, flop=16e9, bytes=16.001e9, weights=16e9)
    assert what_if([lean], "H100 SXM", "bf16", batch=1000).limiter == "compute"


def test_small_kernels_stay_at_their_launch():
    tiny = Part("tiny", 1e-4, flop=1e3, bytes=1e3, matrix=False, launches=20)
    outcome = what_if([tiny], "A100 SXM 80GB", "bf16", to_gpu="B200 SXM")
    assert outcome.limiter == "launch" and outcome.gain == pytest.approx(1)
    assert outcome.ceiling == pytest.approx(1e-4 / (20 * 3e-6))


def test_the_ceiling_is_every_part_at_its_roof():
    outcome = what_if(STEP, "H100 SXM", "bf16")
    least = 2e12 / 989e12 + 3e9 / 3.35e12
    assert outcome.ceiling == pytest.approx(6e-3 / least)


def test_the_sparse_peak_promises_twice_and_says_so():
    outcome = what_if([GEMM], "H100 SXM", "bf16", sparse_peak=True)
    assert outcome.gain == pytest.approx((2e12 / 989e12) / (4e9 / 3.35e12))
    assert any("2:4 sparsity" in note for note in outcome.notes)


def test_unverified_peaks_are_noted():
    assert any("not verified" in note for note in what_if([GEMM], "RTX 5090", "fp8", batch=2).notes)
    assert what_if(STEP, "H100 SXM", "bf16").notes == ()


def test_a_part_faster_than_its_roof_is_noted():
    [note] = what_if([GEMM], "A100 SXM 80GB", "bf16").notes
    assert note == "gemm took less than a A100 SXM 80GB needs in bf16: check its work and time"


def test_the_table_is_the_same_without_sliders():
    changes = {"H100": {"to_gpu": "H100 SXM"}, "fused": {"fuse": 0.6}}
    headers, rows = what_if_table(STEP, "A100 SXM 80GB", "bf16", changes)
    assert [row[0] for row in rows] == ["as it is", "H100", "fused"]
    assert (
        rows[1][headers.index("items a second")] == what_if(STEP, "A100 SXM 80GB", "bf16", to_gpu="H100 SXM").quantity
    )
    assert all(isinstance(row[2], Quantity) and row[2].origin == "predicted" for row in rows)
    assert "predicted" in str(Table(headers, rows))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"fuse": 1.5}, WhatIfError, "fuse is 1.5"),
        ({"batch": 0}, WhatIfError, "batch is 0"),
        ({"batch": float("nan")}, WhatIfError, "batch is nan"),
        ({"to_dtype": "fp64"}, WhatIfError, "size of 'fp64'"),
        ({"to_dtype": "fp4"}, PeakError, "no fp4 peak"),
        ({"to_gpu": "H100"}, PeakError, "several models"),
    ],
)
def test_what_cannot_be_predicted_is_named(change, error, words):
    with pytest.raises(error, match=words) as caught:
        what_if(STEP, "A100 SXM 80GB", "bf16", **change)
    assert caught.value.mend


def test_a_step_without_time_is_refused():
    for wrong in ((), (Part("a", 0.0, 1, 1),)):
        with pytest.raises(WhatIfError, match="parts that take time"):
            what_if(wrong, "H100 SXM", "bf16")
