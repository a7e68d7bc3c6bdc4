"""The bug museum: how a mended script is examined on two ranks, next to one process."""

import math
from typing import TYPE_CHECKING, NamedTuple

from helpers.course.exercise import Exercise, Finding, Symptom

if TYPE_CHECKING:
    from torch import Tensor

    from helpers.course.museum.alone import Trained
    from helpers.course.museum.bench import Task
    from helpers.course.museum.hall import Attempt, Script

STEPS = (1, 3)
TOLERANCE, BF16_TOLERANCE = 1e-3, 0.05
FACTORS = (0.25, 0.5, 2.0, 4.0)


class Look(NamedTuple):
    """What a property is judged by: the attempts of both ranks after `steps` steps, and the oracle's."""

    task: "Task"
    steps: int
    attempts: "tuple[Attempt, ...]"
    oracle: "Trained"

    @property
    def where(self) -> str:
        """The input, in words."""
        return f"{self.task.rows} rows on 2 ranks, {self.steps} step{'s' * (self.steps != 1)}"

    @property
    def tolerance(self) -> float:
        """The largest relative difference from the oracle that rounding explains."""
        return BF16_TOLERANCE if self.task.bf16 else TOLERANCE


def examine_script(script: "Script", seed: int, task: "Task") -> Finding | None:
    """The first property of a trained model that `script` lacks on two ranks, after one step and after more."""
    from helpers.course.museum.alone import train_alone
    from helpers.course.museum.hall import DEADLINE_S, visit

    seen = visit(script, task, seed, STEPS)
    if seen.ending == "hangs":
        rule = "Every rank reaches every collective, and the script ends."
        return Finding(rule, f"after {DEADLINE_S:g} s, {_heart(seen.message)}", Symptom.HANGS)
    if seen.ending == "aborts":
        rule = "The ranks pass tensors of one shape to a collective, and survive."
        return Finding(rule, _heart(seen.message), Symptom.ABORTS)
    looks = [Look(task, steps, seen.attempts[steps], train_alone(task, seed, steps)) for steps in STEPS]
    return next((found for look in looks for judge in JUDGES if (found := judge(look))), None)


def _heart(message: str) -> str:
    """The message of the ranks without its advice."""
    return message.partition("\n  mend:")[0]


def _form(look: Look) -> Finding | None:
    """`(losses, weights)`: a list of numbers and a dict of whole tensors."""
    import torch

    rule = "A script returns a list of numbers and a dict of whole weights."
    for rank, attempt in enumerate(look.attempts):
        result = attempt.result
        if not isinstance(result, tuple) or len(result) != 2:
            return Finding(rule, f"rank {rank} returned {_kind(result)}", Symptom.TYPE)
        losses, weights = result
        if not isinstance(losses, list) or not all(type(loss) in (int, float) for loss in losses):
            return Finding(rule, f"rank {rank}: the losses are {_kind(losses)}", Symptom.TYPE)
        if not isinstance(weights, dict) or not all(isinstance(each, torch.Tensor) for each in weights.values()):
            return Finding(rule, f"rank {rank}: the weights are {_kind(weights)}", Symptom.TYPE)
    return None


def _kind(value: object) -> str:
    if isinstance(value, list | tuple) and value:
        return f"a {type(value).__name__} of {len(value)}, first {_kind(value[0])}"
    if isinstance(value, dict) and value:
        return f"a dict with {_kind(next(iter(value.values())))}"
    return value if isinstance(value, str) else f"a {type(value).__name__}"


def _shape(look: Look) -> Finding | None:
    """One loss a step; every weight, whole, in fp32, on every rank."""
    for rank, attempt in enumerate(look.attempts):
        losses, weights = attempt.result
        if len(losses) != look.steps:
            rule, saw = "Each step has one loss.", f"rank {rank}, {look.where}: {len(losses)} losses"
            return Finding(rule, saw, Symptom.SHAPE)
        for name, first in look.oracle.first.items():
            if name not in weights or weights[name].shape != first.shape:
                got = f"shape {tuple(weights[name].shape)}" if name in weights else "nothing"
                rule, saw = "Every rank returns every weight whole.", f"rank {rank}: {got} for {name}"
                return Finding(rule, saw, Symptom.SHAPE)
    return None


def _dtype(look: Look) -> Finding | None:
    """Weights are kept in fp32; the model computes in the dtype of the task."""
    for rank, attempt in enumerate(look.attempts):
        for name, weight in attempt.result[1].items():
            if str(weight.dtype) != "torch.float32":
                saw = f"rank {rank}: {name} is {weight.dtype}"
                return Finding("The optimizer works on fp32 weights.", saw, Symptom.DTYPE, 1)
        if look.task.bf16 and "bfloat16" not in attempt.computed:
            saw = f"rank {rank} computed in {', '.join(sorted(attempt.computed)) or 'no layer'}"
            return Finding("The layers compute in bf16.", saw, Symptom.DTYPE, 2)
    return None


def _finite(look: Look) -> Finding | None:
    """Losses and weights are numbers."""
    for rank, attempt in enumerate(look.attempts):
        losses, weights = attempt.result
        bad = [name for name, weight in weights.items() if not weight.isfinite().all()]
        if bad or not all(map(math.isfinite, losses)):
            saw = f"rank {rank}, {look.where}: not finite are {', '.join(bad) or 'the losses only'}"
            return Finding("Losses and weights are finite.", saw, Symptom.NAN)
    return None


def _agree(look: Look) -> Finding | None:
    """Both ranks return the same: they trained one model."""
    (losses, weights), (other_losses, others) = (attempt.result for attempt in look.attempts)
    if losses != other_losses:
        step = next(step for step, pair in enumerate(zip(losses, other_losses)) if pair[0] != pair[1])
        saw = f"{look.where}: the losses of step {step} are {losses[step]:.4f} and {other_losses[step]:.4f}"
        return Finding("The loss of a step is the mean over all ranks, on each of them.", saw, Symptom.INCONSISTENT)
    for name in look.oracle.first:
        if not weights[name].equal(others[name]):
            saw = f"{look.where}: {name} differs between the ranks"
            return Finding("Both ranks return one model.", saw, Symptom.INCONSISTENT)
    return None


def _sharded(look: Look) -> Finding | None:
    """A model that `build` made is sharded at the end."""
    if all(attempt.sharded for attempt in look.attempts):
        return None
    rule = "The model that build() made is sharded over the mesh."
    return Finding(rule, "at the end no model was sharded", Symptom.NOT_SHARDED)


def _moved(look: Look) -> Finding | None:
    """Training changes the weights that it returns."""
    weights = look.attempts[0].result[1]
    if any(not weights[name].equal(first) for name, first in look.oracle.first.items()):
        return None
    saw = f"{look.where}: no weight changed"
    return Finding("A step changes the weights.", saw, Symptom.TRAINS_NOTHING)


def _same_update(look: Look) -> Finding | None:
    """The update is that of one process on the same batches."""
    import torch

    weights, oracle = look.attempts[0].result[1], look.oracle
    got = _flat({name: weights[name] - first for name, first in oracle.first.items()})
    truth = _flat({name: oracle.weights[name] - first for name, first in oracle.first.items()})
    error = float((got - truth).norm() / truth.norm())
    if error <= look.tolerance:
        return None
    rule = "Two ranks train the model that one process trains on the same batches."
    saw = f"{look.where}: the change of the weights is {error:.1%} away"
    if len({attempt.started for attempt in look.attempts}) > 1:
        return Finding(rule, f"{saw}; the ranks started from different weights", Symptom.INCONSISTENT)
    factor = float(torch.dot(got, truth) / torch.dot(truth, truth))
    if abs(factor - 1) > 0.1 and float((got - factor * truth).norm() / truth.norm()) <= look.tolerance:
        saw = f"{look.where}: the change of the weights is {factor:.3g} times as large"
        return Finding(rule, saw, Symptom.CONSTANT_FACTOR)
    return Finding(rule, saw, Symptom.VALUE)


def _flat(tensors: "dict[str, Tensor]") -> "Tensor":
    import torch

    return torch.cat([tensor.double().flatten() for tensor in tensors.values()])


def _same_losses(look: Look) -> Finding | None:
    """The losses are those of one process."""
    for step, (got, truth) in enumerate(zip(look.attempts[0].result[0], look.oracle.losses)):
        if math.isclose(got, truth, rel_tol=look.tolerance):
            continue
        rule = "The loss of a step is the mean over the whole batch, as one process sees it."
        saw = f"{look.where}: the loss of step {step} is {got:.4f}"
        for factor in FACTORS:
            if math.isclose(got, factor * truth, rel_tol=look.tolerance):
                return Finding(rule, f"{saw}, {factor:g} times what it should be", Symptom.CONSTANT_FACTOR)
        return Finding(rule, saw, Symptom.VALUE)
    return None


JUDGES = (_form, _shape, _dtype, _finite, _agree, _sharded, _moved, _same_update, _same_losses)


def _exercise(number: int, title: str, *hints: str) -> Exercise:
    """The exercise that mends exhibit `number`."""
    identifier = f"training.{number}"

    def examine(answer: "Script", seed: int) -> Finding | None:
        from helpers.course.museum.exhibits import exhibit

        return examine_script(answer, seed, exhibit(identifier).task)

    return Exercise(identifier, title, hints, examine)


EXERCISES = (
    _exercise(
        6,
        "Mend: the optimizer that holds yesterday's weights",
        "fully_shard puts new parameters into the model. Compare id(next(model.parameters())) before and after it.",
        "An optimizer updates the tensors that it was given, whether or not a model still uses them.",
        "Two lines change places.",
    ),
    _exercise(
        7,
        "Mend: two ranks, one half of the data",
        "Print the first row on each rank.",
        "Rank r takes the r-th share of the rows. What does the script know about its rank?",
        "chunk(2) cuts the rows into two shares; mesh.get_local_rank() says which of them is yours.",
    ),
    _exercise(
        8,
        "Mend: two models in one",
        "fully_shard does not broadcast: each rank cuts its rows from its own model.",
        "Which number does each rank hand to build?",
        "What differs between ranks is the data. The seed of the weights is one that all of them share.",
    ),
    _exercise(
        9,
        "Mend: the save that never ends",
        "full_tensor() gathers the shards of all ranks: it is a collective.",
        "A collective under an if that not all ranks enter waits for the others without end.",
        "Let every rank gather. Which rank then writes the file is another question.",
    ),
    _exercise(
        10,
        "Mend: the last batch of the epoch",
        "Print the shape of per_row on each rank.",
        "all_gather expects tensors of one shape on all ranks. Is there a number whose shape is always the same?",
        "The mean over all rows is the sum of the ranks' sums over the number of rows: total(…) / rows.",
    ),
    _exercise(
        11,
        "Mend: a ruler on every rank",
        "Print the norm on each rank: both cannot be the norm of the whole gradient.",
        "Squares of norms add up: the square of the whole norm is the sum of the squares over the ranks.",
        "torch.nn.utils.clip_grad_norm_ knows what a sharded gradient is.",
    ),
    _exercise(
        12,
        "Mend: one vote a rank",
        "Count the real tokens of each rank. How much does one token of rank 1 weigh, beside one of rank 0?",
        "Sum over the tokens, and divide by the number of tokens of all ranks: total(…) adds up over the ranks.",
        "fully_shard takes the mean of the gradients over the ranks. Undo its division by the number of ranks, and "
        "log the total of the parts.",
    ),
    _exercise(
        13,
        "Mend: twice the step",
        "backward() adds to the gradient. After two micro-batches it holds the sum of two means.",
        "The mean over a step is the sum of the micro-batches' means over their number.",
        "Scale the loss before backward(), not the learning rate: the loss that is logged stays a mean.",
    ),
    _exercise(
        14,
        "Mend: steps too small to see",
        "bf16 keeps 8 significant bits: near 0.3 neighbouring numbers are about 0.002 apart. How large is one step?",
        "Leave the model in fp32, and let fully_shard cast what it gathers: MixedPrecisionPolicy(param_dtype=…).",
        "Say in which dtype gradients are summed, too: reduce_dtype=torch.float32.",
    ),
    _exercise(
        15,
        "Mend: memory is not initialisation",
        "to_empty gives memory, and leaves in it what was there. Which parameters are filled after that?",
        "model.named_parameters() has all of them, with the names of the checkpoint.",
        "A check that every parameter was written is worth its line: it would have found this at once.",
    ),
)
