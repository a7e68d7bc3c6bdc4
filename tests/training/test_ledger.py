import pytest

from helpers.training.ledger import training_state
from helpers.training.loop import Trainer
from helpers.training.model import count_parameters
from helpers.training.presets import load_preset


def test_one_rank_holds_what_the_formula_says_but_for_adams_step_counters():
    trainer = Trainer(load_preset("tiny"))
    trainer.step()
    trainer.backward()
    counters = 4 * len(list(trainer.model.parameters()))
    held = sum(trainer.held_bytes().values())
    assert held - counters == training_state(count_parameters(trainer.model), 1).value


@pytest.mark.parametrize(("parameters", "ranks"), [(0, 1), (1, 0), (-1, 2)])
def test_nothing_cannot_be_held(parameters, ranks):
    with pytest.raises(ValueError, match="positive"):
        training_state(parameters, ranks)
