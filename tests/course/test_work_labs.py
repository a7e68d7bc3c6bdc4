"""The oracles of profiling.5 and profiling.8: counted work against formulas, and the model of a cache."""

from functools import partial

import pytest
import torch

from helpers.course.exercises.profiling.attention_work import Attention, attention_counted
from helpers.course.exercises.profiling.cache_model import LINE, moved_by
from helpers.course.exercises.profiling.fuse_norm import compulsory_bytes, truth_of
from helpers.profiling.work import attention

CACHE = 2**16


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_fused_attention_counts_what_the_work_model_says(kv_heads, causal):
    counted = attention_counted(Attention(3, 4, kv_heads, 10, 10, 8, 2, causal), fused=True)
    model = attention(3, 4, 10, 10, 8, 2, causal, kv_heads)
    assert counted == (model.flop, model.bytes)


def test_three_kernels_move_the_scores_four_times_more():
    sizes = Attention(3, 4, 2, 5, 7, 8, 4)
    (flop, moved), (same, fused) = (attention_counted(sizes, one) for one in (False, True))
    assert flop == same
    assert moved - fused == 4 * 4 * (3 * 4 * 5 * 7)


@pytest.fixture
def big():
    """Four times the cache, a whole number of lines."""
    return torch.rand(CACHE)


def test_an_addition_of_large_tensors_is_three_passes(big):
    moved = moved_by(lambda: big + big.clone(), CACHE)
    assert (moved.read, moved.written, moved.operators) == (3 * big.nbytes, 2 * big.nbytes, 2)


def test_what_fits_the_cache_is_read_once_and_a_freed_temporary_is_never_written():
    small = torch.rand(1024)
    moved = moved_by(lambda: (small * 2 + small).exp(), CACHE)
    assert (moved.read, moved.written, moved.operators) == (small.nbytes, small.nbytes, 3)


def test_views_and_empty_tensors_move_nothing(big):
    assert moved_by(lambda: (big.view(2, -1)[:, :8], torch.empty_like(big)), CACHE).bytes == 0


def test_out_is_written_only_and_in_place_is_read_too(big):
    out = torch.empty_like(big)
    assert moved_by(lambda: torch.exp(big, out=out), CACHE).bytes == 2 * big.nbytes
    assert moved_by(lambda: out.exp_(), CACHE).bytes == 2 * big.nbytes
    assert moved_by(lambda: out.copy_(big), CACHE).read == big.nbytes


def test_columns_of_a_matrix_touch_their_own_lines():
    matrix = torch.rand(64, 1024)
    moved = moved_by(lambda: matrix[:, : LINE // 4].clone(), CACHE)
    assert (moved.read, moved.written) == (64 * LINE, 64 * LINE)


def test_blocks_need_the_compulsory_bytes_and_large_blocks_more():
    x, residual, weight = torch.rand(256, 256), torch.rand(256, 256), torch.rand(256)

    def add_norm(rows):
        normed, total = torch.empty_like(x), torch.empty_like(x)
        for start in range(0, len(x), rows):
            part = slice(start, start + rows)
            normed[part], total[part] = truth_of(x[part], residual[part], weight, 1e-5)
        return normed, total

    small, whole = (moved_by(partial(add_norm, rows), CACHE).bytes for rows in (2, 256))
    least = compulsory_bytes(256, 256, 4)
    assert least <= small <= 1.02 * least
    assert whole > 2 * least
