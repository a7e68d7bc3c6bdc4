import sysconfig
from pathlib import Path

import pytest
import torch

from helpers.training.data import HELD_OUT_EVERY, Batches, DataError, standard_library

TEXT = torch.arange(1000, dtype=torch.int64).to(torch.uint8)


def test_the_library_is_split_by_file(tmp_path):
    for index in range(45):
        (tmp_path / f"m{index:02}.py").write_text(f"<{index}>")
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "other.py").write_text("other")
    corpus = standard_library(tmp_path)
    held = [index for index in range(45) if (index + 1) % HELD_OUT_EVERY == 0]
    assert bytes(corpus.held_out).decode() == "".join(f"<{index}>" for index in held)
    assert bytes(corpus.train).decode() == "".join(f"<{i}>" for i in range(45) if i not in held)
    assert corpus.files == 45


def test_the_real_library_is_read_to_the_last_byte():
    corpus = standard_library()
    source = Path(sysconfig.get_path("stdlib"), "argparse.py").read_bytes()
    both = bytes(corpus.train), bytes(corpus.held_out)
    assert sum(source in text for text in both) == 1
    assert len(corpus.train) > 10 * len(corpus.held_out) > 0


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(DataError, match="found 0 Python files"):
        standard_library(tmp_path)


def test_targets_are_the_next_bytes():
    batch = Batches(TEXT, 7, 12).at(3)
    assert batch.inputs.dtype == batch.targets.dtype == torch.int64
    assert batch.inputs.shape == batch.targets.shape == (12, 7)
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    assert torch.equal(batch.targets[:, -1], (batch.inputs[:, -1] + 1) % 256)


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_ranks_share_an_epoch_without_overlap_or_gap(world):
    ranks = [Batches(TEXT, 7, 12, rank, world, seed=4) for rank in range(world)]
    steps = ranks[0].steps_per_epoch
    seen = [window for step in range(steps) for rank in ranks for window in rank.chosen(step).tolist()]
    assert len(seen) == len(set(seen)) == steps * 12
    assert set(seen) <= set(range(ranks[0].windows))
    assert ranks[0].windows - len(seen) < 12


@pytest.mark.parametrize("world", [2, 4])
def test_side_by_side_the_ranks_hold_the_batch_of_one_process(world):
    alone = Batches(TEXT, 7, 12)
    for step in (0, 5, alone.steps_per_epoch + 2):
        parts = [Batches(TEXT, 7, 12, rank, world).at(step).inputs for rank in range(world)]
        assert torch.equal(torch.cat(parts), alone.at(step).inputs)


def test_epochs_and_seeds_are_shuffled_anew_and_repeatably():
    one = Batches(TEXT, 7, 12, seed=1)
    again, other = Batches(TEXT, 7, 12, seed=1), Batches(TEXT, 7, 12, seed=2)
    later = one.steps_per_epoch
    assert torch.equal(one.chosen(0), again.chosen(0))
    assert not torch.equal(one.chosen(0), one.chosen(later))
    assert not torch.equal(one.chosen(0), other.chosen(0))


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"context": 100, "batch": 12}, "9 windows of 100, fewer than the 12"),
        ({"context": 7, "batch": 12, "world": 5}, "no equal part of 12"),
        ({"context": 7, "batch": 12, "rank": 2, "world": 2}, "rank 2 of 2"),
    ],
)
def test_what_cannot_be_cut_is_refused(kwargs, words):
    with pytest.raises(DataError, match=words):
        Batches(TEXT, **kwargs)
