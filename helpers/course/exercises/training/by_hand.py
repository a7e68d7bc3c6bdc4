"""FSDP by hand: how a way of sharding one parameter is examined on two ranks, next to one process."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from helpers.course.exercise import Exercise, Finding, Symptom

if TYPE_CHECKING:
    from torch import Tensor

    from helpers.course.exercises.training.by_hand_parts import ShardParameter
    from helpers.course.exercises.training.by_hand_trials import Case, Run
    from helpers.course.museum.hall import Call

DEADLINE_S = 6.0  # for one case, which takes a tenth of a second
SLACK = 64  # bytes of small change, as a counter; less than any weight that is examined
DEEP = 8  # layers, from which on a few whole ones are not all of them
FORWARD_LAYERS, BACKWARD_LAYERS = 3, 3  # whole layers beyond the shards: a copy to pad, and a gradient
BF16_TOLERANCE = 0.02
LEAVE, COLLECT, REDUCE, BOTH, CASTS = 1, 2, 3, 4, 5

FAULTS = {
    "freed": (
        "Whenever a layer computes its parameters are whole, in backward too.",
        Symptom.OUT_OF_BOUNDS,
        BOTH,
    ),
    "rows": ("A collective gets equally many rows for each rank, whatever the parameter has.", Symptom.TAIL, REDUCE),
    "dtype": ("Rows travel in the dtype of the room that they will fill.", Symptom.DTYPE, CASTS),
}


@dataclass(frozen=True)
class Look:
    """What a property is judged by: one case, and what its training showed on each rank, alone and sharded."""

    case: "Case"
    alone: "tuple[Run, ...]"
    runs: "tuple[Run, ...]"

    @property
    def layer(self) -> int:
        """Bytes of the largest layer, whole and padded, as fp32."""
        sizes: dict[str, int] = {}
        for name, shard in self.runs[0].start.items():
            layer = name.rpartition(".")[0]
            sizes[layer] = sizes.get(layer, 0) + shard.nbytes * len(self.runs)
        return max(sizes.values())

    @property
    def shards(self) -> int:
        """Bytes of one rank's rows."""
        return sum(shard.nbytes for shard in self.runs[0].start.values())

    @property
    def wholes(self) -> int:
        """Bytes of all parameters, unsharded."""
        return sum(whole.nbytes for whole in self.alone[0].start.values())

    def whole(self, parts: "list[Tensor]", name: str) -> "Tensor":
        """The ranks' rows of one parameter, put together."""
        import torch

        return torch.cat(parts)[: len(self.alone[0].start[name])]


def examine_by_hand(answer: "ShardParameter", seed: int) -> Finding | None:
    """The first case on which a module sharded by `answer(layer, name, shard)` is not what it should be."""
    from helpers.course.exercises.training.by_hand_trials import perform
    from helpers.course.museum.hall import on_ranks

    for case in _cases(seed):
        call = on_ranks(perform, answer, case, seed, deadline_s=DEADLINE_S)
        if call.ending != "returned":
            return _broken(case, call)
        alone, runs = zip(*call.results)
        if all(run.missing for run in runs):
            raise NotImplementedError(runs[0].missing)
        look = Look(case, alone, runs)
        if finding := next((found for judge in JUDGES if (found := judge(look))), None):
            return finding
    return None


def _broken(case: "Case", call: "Call") -> Finding:
    """Ranks that waited for each other without end, or died."""
    heart = f"{case.name}: {call.message.partition(chr(10) + '  mend:')[0]}"
    if call.ending == "hangs":
        rule = "Every rank reaches every collective, in one order."
        return Finding(rule, f"after {DEADLINE_S:g} s, {heart}", Symptom.HANGS, REDUCE)
    rule = "A rank reads no memory that was freed, and sends what the other expects."
    return Finding(rule, heart, Symptom.ABORTS, BOTH)


def _cases(seed: int) -> Iterator["Case"]:
    """Small modules first; rows that two ranks do not divide, and bf16, last."""
    from helpers.course.exercises.training.by_hand_trials import Case

    draw = random.Random(seed)
    linear = lambda rows, columns, bias=True: ("Linear", columns, rows, bias)
    yield Case("a linear layer of 8 rows", (linear(8, 4, False),))
    a, b, c = (2 * draw.randint(2, 5) for _ in range(3))
    yield Case(f"an MLP {a}-{b}-{c}", (linear(b, a), ("LayerNorm", b), ("Tanh",), linear(c, b)), steps=3)
    deep = (linear(16, 16), ("Tanh",)) * 10
    yield Case("ten linear layers of 16 rows", deep)
    words, width = 2 * draw.randint(4, 8), 2 * draw.randint(2, 5)
    lm = (("Embedding", words, width), ("RMSNorm", width), linear(words, width, False))
    name = f"a language model of {words} words"
    yield Case(name, lm, adam=True, steps=3)
    yield Case(f"{name}, two backward passes a step", lm, steps=2, micro_batches=2)
    a, b = 2 * draw.randint(1, 4) + 1, 2 * draw.randint(2, 5) + 1
    odd = (linear(b, a), ("LayerNorm", b), ("Tanh",), linear(1, b))
    yield Case(f"an MLP {a}-{b}-1", odd, even=False, adam=True, steps=3)
    words = 2 * draw.randint(4, 8) + 1
    low = (("Embedding", words, b), ("RMSNorm", b), linear(words, b, False))
    yield Case(f"a language model of {words} words in bf16", low, even=False, steps=3, bf16=True)


def _refused(look: Look) -> Finding | None:
    """Nothing is asked of torch or gloo that they refuse."""
    for rank, run in enumerate(look.runs):
        if run.fault:
            rule, symptom, hint = FAULTS[run.fault]
            if symptom is Symptom.TAIL and look.case.even:
                symptom = Symptom.SHAPE
            return Finding(rule, f"{look.case.name}, rank {rank}, was refused: {run.words}", symptom, hint)
    return None


def _names(look: Look) -> Finding | None:
    """The parameters are found under their old names."""
    wanted = list(look.alone[0].start)
    for rank, run in enumerate(look.runs):
        if list(run.start) != wanted:
            other = sorted(set(run.start) ^ set(wanted))
            rule = "Between passes a model has its parameters under their own names: the rank's rows."
            return Finding(rule, f"{look.case.name}, rank {rank}: {', '.join(other)}", Symptom.INTERFACE, LEAVE)
    return None


def _rows(look: Look) -> Finding | None:
    """Each rank holds its rows of every parameter, in fp32, and the zeros that fill them up."""
    import torch

    rule = "Between passes a layer holds ceil(rows / world) rows of each parameter, in fp32."
    ranks = len(look.runs)
    for name, whole in look.alone[0].start.items():
        most = -(-len(whole) // ranks)
        for rank, run in enumerate(look.runs):
            part, where = run.start[name], f"{look.case.name}, rank {rank}: {name}"
            if part.dtype != torch.float32:
                return Finding(rule, f"{where} is {part.dtype}", Symptom.DTYPE, CASTS)
            if part.shape == whole.shape != (most, *whole.shape[1:]):
                return Finding(rule, f"{where} has all {len(whole)} rows", Symptom.NOT_SHARDED, LEAVE)
            if part.shape != (most, *whole.shape[1:]):
                return Finding(rule, f"{where} has shape {tuple(part.shape)}", Symptom.SHAPE, LEAVE)
        if not look.whole([run.start[name] for run in look.runs], name).equal(whole):
            saw = f"{look.case.name}: {name} put together is another tensor"
            return Finding("Rank r holds the r-th run of rows.", saw, Symptom.VALUE, LEAVE)
    return None


def _at_rest(look: Look) -> Finding | None:
    """After sharding a rank holds its rows, and nothing else."""
    return _memory(look, "shard", "After sharding a rank holds its rows and nothing else.")


def _after_forward(look: Look) -> Finding | None:
    """After forward the wholes are gone, though autograd still refers to them."""
    rule = "After forward a rank holds its rows, and what the layers keep for backward; no whole parameter."
    return _memory(look, "forward", rule)


def _after_backward(look: Look) -> Finding | None:
    """After backward a rank holds its rows and their gradients."""
    rule = "After backward a rank holds its rows and their gradients; no whole parameter, no whole gradient."
    return _memory(look, "backward", rule)


def _memory(look: Look, phase: str, rule: str) -> Finding | None:
    """Live bytes after a phase; bf16 is left out, as its activations are not those of the oracle."""
    from helpers.course.exercises.training.by_hand_trials import fair_bytes

    if look.case.bf16:
        return None
    for rank, (run, alone) in enumerate(zip(look.runs, look.alone)):
        if (extra := run.live[phase] - fair_bytes(alone, look.shards)[phase]) > SLACK:
            saw = f"{look.case.name}, rank {rank}: {extra:,} bytes more, where all parameters are {look.wholes:,}"
            return Finding(rule, saw, Symptom.NOT_FREED, LEAVE)
    return None


def _peak(look: Look) -> Finding | None:
    """At no time are more than a few layers whole; only a module of many equal layers can tell."""
    if look.case.bf16 or look.wholes < DEEP * look.layer:
        return None
    alone, activations = look.alone[0], look.alone[0].live["forward"] - look.wholes
    fair = {
        "forward": look.shards + alone.peak["forward"] - look.wholes + FORWARD_LAYERS * look.layer,
        "backward": 2 * look.shards + activations + BACKWARD_LAYERS * look.layer,
    }
    for phase, most in fair.items():
        for rank, run in enumerate(look.runs):
            if (extra := run.peak[phase] - most) > SLACK:
                rule = "One layer is whole at a time; the others are rows."
                saw = f"{look.case.name}, rank {rank}, in {phase}: {extra:,} bytes above the room for a few layers"
                return Finding(rule, saw, Symptom.MEMORY, COLLECT)
    return None


def _computed(look: Look) -> Finding | None:
    """The layers compute in the compute dtype."""
    wanted = {"bfloat16" if look.case.bf16 else "float32"}
    for rank, run in enumerate(look.runs):
        if run.computed != wanted:
            saw = f"{look.case.name}, rank {rank}: layers computed in {' and '.join(sorted(run.computed))}"
            return Finding("Every layer computes in compute_dtype.", saw, Symptom.DTYPE, CASTS)
    return None


def _output(look: Look) -> Finding | None:
    """Forward gives what the unsharded module gives."""
    rule = "The output is that of the unsharded module, bit for bit in fp32."
    for rank, (run, alone) in enumerate(zip(look.runs, look.alone)):
        where = f"{look.case.name}, rank {rank}: the output"
        if finding := _same(look, run.output, alone.output, rule, where, COLLECT):
            return finding
    return None


def _gradients(look: Look) -> Finding | None:
    """Each rank has its rows of the gradient that is averaged over the ranks."""
    import torch

    rule = "After backward each rank's rows have their gradient, averaged over the ranks, in fp32."
    for name, truth in look.alone[0].gradients.items():
        for rank, run in enumerate(look.runs):
            got, where = run.gradients[name], f"{look.case.name}, rank {rank}: {name}"
            if got is None:
                return Finding(rule, f"{where} has no gradient", Symptom.TRAINS_NOTHING, REDUCE)
            if got.dtype != torch.float32:
                return Finding(rule, f"{where} has a gradient in {got.dtype}", Symptom.DTYPE, CASTS)
            if got.shape != run.start[name].shape:
                return Finding(rule, f"{where} has a gradient of {tuple(got.shape)}", Symptom.SHAPE, REDUCE)
        got = look.whole([run.gradients[name] for run in look.runs], name)
        where = f"{look.case.name}: the gradient of {name}"
        if finding := _same(look, got, truth, rule, where, REDUCE):
            return _kind_of_gradient(look, name, got, finding)
    return None


def _kind_of_gradient(look: Look, name: str, got: "Tensor", finding: Finding) -> Finding:
    """The same finding, or a closer one when the gradient is a rank's own, or a multiple of the right one."""
    import torch

    ranks, truth = len(look.runs), look.alone[0].gradients[name]
    most = len(look.runs[0].start[name])
    own = torch.cat([alone.own[name][rank * most : (rank + 1) * most] for rank, alone in enumerate(look.alone)])
    if torch.allclose(got, own, rtol=1e-3, atol=1e-7):
        saw = f"{look.case.name}: each rank has the gradient of its own batch for {name}"
        return Finding(finding.property, saw, Symptom.INCONSISTENT, REDUCE)
    for factor in (ranks, 1 / ranks):
        if torch.allclose(got, factor * truth, rtol=1e-3, atol=1e-7):
            saw = f"{look.case.name}: the gradient of {name} is {factor:g} times what it should be"
            return Finding(finding.property, saw, Symptom.CONSTANT_FACTOR, REDUCE)
    return finding


def _traffic(look: Look) -> Finding | None:
    """A parameter is gathered once in forward and once in backward, and its gradient reduced once."""
    count, bytes_fp32 = len(look.runs[0].start), look.shards * len(look.runs)
    gathered = bytes_fp32 // 2 if look.case.bf16 else bytes_fp32
    fair = {
        ("all-gather", "forward"): gathered,
        ("all-gather", "backward"): gathered,
        ("reduce-scatter", "backward"): bytes_fp32,
    }
    rule = (
        "A step gathers each parameter once in forward and once in backward, in the compute dtype, and "
        "reduce-scatters its gradient once, in fp32."
    )
    for rank, run in enumerate(look.runs):
        where, found = f"{look.case.name}, rank {rank}", [sent for sent in run.sent if sent.phase != "shard"]
        for kind, phase in dict.fromkeys((sent.kind, sent.phase) for sent in found):
            calls = [sent for sent in found if (sent.kind, sent.phase) == (kind, phase)]
            size, hint = sum(sent.bytes for sent in calls), CASTS if look.case.bf16 else BOTH
            if (kind, phase) not in fair:
                saw = f"{where}: {len(calls)} × {kind} in {phase}"
                return Finding(rule, saw, Symptom.TRAFFIC, REDUCE)
            if kind == "reduce-scatter" and {sent.dtype for sent in calls} != {"float32"}:
                saw = f"{where}: gradients travel in {calls[0].dtype}"
                return Finding("Gradients are added up in fp32.", saw, Symptom.DTYPE, CASTS)
            if len(calls) > count or size > fair[kind, phase]:
                saw = f"{where}, in {phase}: {len(calls)} × {kind} of {size:,} bytes for {count} parameters"
                return Finding(rule, saw, Symptom.TRAFFIC, hint)
    return None


def _weights(look: Look) -> Finding | None:
    """After training the ranks hold the weights that one process has."""
    rule = "Two ranks train what one process trains on the mean of both ranks' gradients, bit for bit in fp32."
    for name, truth in look.alone[0].weights.items():
        got = look.whole([run.weights[name] for run in look.runs], name)
        steps = f"{look.case.steps} step{'s' * (look.case.steps != 1)}"
        if got.equal(start := look.alone[0].start[name]) and not truth.equal(start):
            saw = f"{look.case.name}: {name} did not change in {steps}"
            return Finding("A step of the optimizer changes the rows.", saw, Symptom.TRAINS_NOTHING, REDUCE)
        where = f"{look.case.name}: {name} after {steps}"
        if finding := _same(look, got, truth, rule, where, COLLECT):
            return finding
    return None


def _inference(look: Look) -> Finding | None:
    """The trained module computes without autograd, too."""
    rule = "After training the module still computes, also under torch.no_grad()."
    for rank, (run, alone) in enumerate(zip(look.runs, look.alone)):
        where = f"{look.case.name}, rank {rank}: the output after training"
        if finding := _same(look, run.last, alone.last, rule, where, COLLECT):
            return finding
    return None


def _same(look: Look, got: "Tensor", truth: "Tensor", rule: str, where: str, hint: int) -> Finding | None:
    """None when `got` is `truth`: bit for bit, or nearly when the layers compute in bf16."""
    got, truth = got.float(), truth.float()
    if got.shape != truth.shape:
        return Finding(rule, f"{where} has shape {tuple(got.shape)}", Symptom.SHAPE, hint)
    if not got.isfinite().all():
        saw = f"{where} is not finite: memory that no collective filled holds NaN here"
        return Finding(rule, saw, Symptom.NAN, BOTH)
    error = float((got - truth).abs().max())
    if error <= (BF16_TOLERANCE * float(truth.abs().max()) if look.case.bf16 else 0.0):
        return None
    symptom = Symptom.VALUE if look.case.even or look.case.bf16 else Symptom.TAIL
    return Finding(rule, f"{where} is off by up to {error:.2g}", symptom, hint if look.case.even else REDUCE)


JUDGES = (
    _refused,
    _names,
    _rows,
    _at_rest,
    _computed,
    _output,
    _after_forward,
    _gradients,
    _after_backward,
    _peak,
    _traffic,
    _weights,
    _inference,
)

EXERCISES = (
    Exercise(
        id="training.5",
        title="FSDP by hand",
        hints=(
            "Between passes the layer's attribute is `rows`, and `padded` has no memory. Autograd keeps a reference "
            "to `whole` from forward to backward, so dropping yours frees nothing: empty the storage they share.",
            "Give `padded` its memory back, gather the rows of all ranks into it, and put `whole` into the layer. Do "
            "it each time the layer computes and for this parameter alone: the rows change with every step.",
            "The whole gradient arrives on every rank, in `whole.grad`. Fill it up to the rows of `padded`, average "
            "it in one collective that leaves each rank its rows, and add the result to what `rows.grad` holds.",
            "Four moments: before a layer's forward, after it, before its backward, and when the gradient of `whole` "
            "is complete. A parameter is gathered in the first and third, and freed in the second and fourth.",
            "The optimizer works on fp32, the layer in compute_dtype. Which side of the all-gather casts, and which "
            "side of the reduce-scatter? What should travel in few bytes, and what must not lose bits?",
        ),
        examine=examine_by_hand,
    ),
)
