"""What a rank does when training.5 is examined: train by the answer, and alone, and keep what can be judged."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from helpers.course.exercises.training.by_hand_parts import ShardParameter, shard_model

ROWS, TOKENS, SETTLE_S = 6, 3, 0.3
FAULTS = {  # words of torch and gloo, and what they say about an answer
    "out of bounds for storage of size 0": "freed",
    "its data is not allocated yet": "freed",
    "outputShape[0] * worldSize": "rows",
    "invalid tensor size": "rows",
    "invalid tensor type": "dtype",
}
COLLECTIVE = ("c10d::", "_c10d_functional::")
KINDS = {
    "gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "allreduce": "all-reduce",
    "all_reduce": "all-reduce",
}


@dataclass(frozen=True)
class Case:
    """A module, and how it is trained.

    layers: each the name of a class in `torch.nn` and its arguments; ids go into an `Embedding`, numbers into
    anything else. even: whether two ranks divide all rows. adam: AdamW instead of SGD with momentum.
    micro_batches: backward passes of a step. bf16: the compute dtype.
    """

    name: str
    layers: tuple[tuple, ...]
    even: bool = True
    adam: bool = False
    steps: int = 1
    micro_batches: int = 1
    bf16: bool = False

    @property
    def dtype(self) -> torch.dtype | None:
        """The compute dtype, or None for that of the parameters."""
        return torch.bfloat16 if self.bf16 else None

    def build(self, seed: int) -> nn.Sequential:
        """The module in fp32, the same weights for the same seed; no two rows are alike."""
        torch.manual_seed(seed)
        model = nn.Sequential(*(getattr(nn, kind)(*sizes) for kind, *sizes in self.layers))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        return model

    def inputs(self, seed: int, step: int, micro: int, rank: int) -> Tensor:
        """What a rank reads: (ROWS, TOKENS) ids, or (ROWS, features) numbers."""
        draw = torch.Generator().manual_seed(hash((seed, step, micro, rank)) % 2**31)
        kind, first, *_ = self.layers[0]
        if kind == "Embedding":
            return torch.randint(first, (ROWS, TOKENS), generator=draw)
        return torch.randn(ROWS, first, generator=draw)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer of the case, over the parameters that `model` has now."""
        if self.adam:
            return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


@dataclass(frozen=True)
class Sent:
    """One collective: its kind, the phase it belongs to, the bytes of the whole tensor, and its dtype."""

    kind: str
    phase: str
    bytes: int
    dtype: str


@dataclass
class Run:
    """What one training shows on one rank.

    start and weights: parameters before the first and after the last step. output and gradients: of the first
    step. own: gradients of this rank's batch alone (only when trained alone). last: the output after training,
    without autograd. live and peak: bytes of all tensors after, and at most during, each phase of the first
    pass. sent: its collectives. computed: dtypes of the layers' outputs. missing: what is not written yet.
    fault and words: `freed` memory was read, or a collective refused `rows` or `dtype`; and the error's words.
    """

    start: dict[str, Tensor] = field(default_factory=dict)
    output: Tensor | None = None
    gradients: dict[str, Tensor | None] = field(default_factory=dict)
    own: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)
    last: Tensor | None = None
    live: dict[str, int] = field(default_factory=dict)
    peak: dict[str, int] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)
    computed: set[str] = field(default_factory=set)
    missing: str = ""
    fault: str = ""
    words: str = ""


class Watch(TorchDispatchMode):
    """Sees every tensor that is made while it is on: how many bytes live, and which collectives run.

    trace: the bytes that live after each operation.
    """

    def __init__(self, run: Run):
        super().__init__()
        self.run, self.phase, self.trace = run, "shard", []
        self._seen: dict[int, StorageWeakRef] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            if storage._cdata not in self._seen:  # the weak reference keeps the address from being used again
                self._seen[storage._cdata] = StorageWeakRef(storage)
        name = func.overloadpacket._qualified_op_name
        if name.startswith(COLLECTIVE) and "wait" not in name and "barrier" not in name:
            self._note(name, (*args, result))
        self.trace.append(self.live())
        self.run.peak[self.phase] = max(self.run.peak.get(self.phase, 0), self.trace[-1])
        return result

    def live(self) -> int:
        """Bytes of the tensors that are alive, memory shared by several counted once."""
        storages = ((key, torch.UntypedStorage._new_with_weak_ptr(ref.cdata)) for key, ref in self._seen.items())
        sizes = {key: storage.nbytes() for key, storage in storages if storage is not None}
        self._seen = {key: ref for key, ref in self._seen.items() if key in sizes}
        return sum(sizes.values())

    def end_phase(self, following: str, fair: int | None = None) -> None:
        """Keep the bytes that live now; what comes belongs to the phase `following`.

        fair: wait a moment until no more are left: a thread of gloo lets go of a tensor a little after the
        collective has ended.
        """
        limit = time.monotonic() + SETTLE_S
        while fair is not None and self.live() > fair and time.monotonic() < limit:
            time.sleep(0.001)
        if fair is not None and self.phase == "shard" and self.live() > fair:
            gc.collect()  # a closure that refers to itself may hold the old parameter until then
        self.run.live[self.phase] = self.live()
        self.phase = following

    def _note(self, name: str, values: tuple) -> None:
        kind = next((kind for word, kind in KINDS.items() if word in name), name.partition("::")[2])
        whole = max(map(_tensors, values), key=_bytes)
        if whole:
            self.run.sent.append(Sent(kind, self.phase, _bytes(whole), _word(whole[0].dtype)))


def _tensors(value: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _bytes(tensors: list[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@contextmanager
def _no_luck() -> Iterator[None]:
    """Memory that nobody filled holds NaN, also when a freed tensor gets its memory back."""
    before = torch.UntypedStorage.resize_

    def resize(storage, size):
        grown = storage.nbytes() == 0 < size
        before(storage, size)
        return storage.fill_(255) if grown else storage

    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.UntypedStorage.resize_ = resize
    try:
        yield
    finally:
        del torch.UntypedStorage.resize_
        torch.use_deterministic_algorithms(False)


@contextmanager
def _spy(run: Run) -> Iterator[None]:
    """Note the dtype in which layers compute."""
    note = lambda module, inputs, output: run.computed.add(_word(output.dtype))
    hook = nn.modules.module.register_module_forward_hook(note)
    try:
        yield
    finally:
        hook.remove()


def perform(shard_parameter: ShardParameter, case: Case, seed: int) -> tuple[Run, Run]:
    """On one rank: the training alone, which is the oracle, then the one of the answer."""
    with _no_luck():
        alone, run = train_alone(case, seed), Run()
        try:
            with _spy(run):
                train_sharded(shard_parameter, case, seed, alone, run)
        except NotImplementedError as error:
            run = Run(missing=str(error) or "not written yet")
        except RuntimeError as error:
            fault = next((fault for words, fault in FAULTS.items() if words in str(error)), None)
            if fault is None:
                raise
            run = Run(fault=fault, words=str(error).splitlines()[0].rpartition("Check failed: ")[2])
    return alone, run


def train_sharded(shard_parameter: ShardParameter, case: Case, seed: int, alone: Run, run: Run) -> None:
    """Train this rank's share under `shard_parameter`, and write what it shows into `run`.

    alone: the same training on one process, which says how many bytes a layer keeps for backward.
    """
    rank = dist.get_rank()
    watch = Watch(run)
    with watch:
        model = shard_model(case.build(seed), shard_parameter, case.dtype)
        # In bf16 the oracle's bytes are others, as it casts whole weights.
        fair = {} if case.bf16 else fair_bytes(alone, _bytes(list(model.parameters())))
        watch.end_phase("forward", fair.get("shard"))
    run.start = _copy(model)
    optimizer = case.optimizer(model)
    for step in range(case.steps):
        for micro in range(case.micro_batches):
            inputs = case.inputs(seed, step, micro, rank)
            if step == micro == 0:
                run.output = first_pass(model, inputs, watch, fair)
            else:
                loss_of(model(inputs)).backward()
        if step == 0:
            run.gradients = {name: _clone(each.grad) for name, each in model.named_parameters()}
        optimizer.step()
        optimizer.zero_grad()
    run.weights = _copy(model)
    with torch.no_grad():
        run.last = model(case.inputs(seed, 0, 0, rank))


def trace_memory(build: Callable[[], nn.Module], inputs: Tensor) -> list[int]:
    """Bytes that live on this rank after each operation of one forward and backward of `build()`, and after all.

    The model's parameters count; `inputs`, which was there before, does not.
    """
    watch = Watch(Run())
    with watch:
        model = build()
        before = len(watch.trace)
        loss_of(model(inputs)).backward()
    return [*watch.trace[before:], watch.live()]


def fair_bytes(alone: Run, shards: int) -> dict[str, int]:
    """Bytes that live after each phase when only `shards` bytes of rows take the place of the parameters."""
    wholes = _bytes(list(alone.start.values()))
    return {
        "shard": shards,
        "forward": shards + alone.live["forward"] - wholes,
        "backward": 2 * shards + alone.live["backward"] - 2 * wholes,
    }


def first_pass(model: nn.Module, inputs: Tensor, watch: Watch, fair: dict[str, int] | None = None) -> Tensor:
    """The output of one forward and backward that are watched; fair: see `Watch.end_phase`."""
    fair = fair or {}
    with watch:
        output = model(inputs)
        watch.end_phase("backward", fair.get("forward"))
        loss_of(output).backward()
        watch.end_phase("step", fair.get("backward"))
    return output.detach().clone()


def loss_of(output: Tensor) -> Tensor:
    """A loss that gives every number of the output a gradient."""
    return (output.float() - 0.5).square().mean()


def train_alone(case: Case, seed: int) -> Run:
    """The training on one process, without a collective: each rank's batch in turn, then the mean gradient.

    In bf16 the weights and inputs are cast, and gradients are averaged in fp32.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    run = Run()
    watch = Watch(run)
    with watch:
        model = case.build(seed)
        watch.end_phase("forward")
    run.start = _copy(model)
    first_inputs = _cast(case.inputs(seed, 0, 0, rank), case)
    run.output = first_pass(_computing(model, case), first_inputs, watch)
    model.zero_grad()
    optimizer = case.optimizer(model)
    for step in range(case.steps):
        passes = [_gradients(model, case, seed, step, micro) for micro in range(case.micro_batches)]
        means = [[sum(parts) / ranks for parts in zip(*each)] for each in passes]
        for parameter, *parts in zip(model.parameters(), *means):
            parameter.grad = sum(parts)
        if step == 0:
            names = [name for name, _ in model.named_parameters()]
            run.gradients = {name: _clone(each.grad) for name, each in model.named_parameters()}
            run.own = dict(zip(names, (sum(parts) for parts in zip(*(each[rank] for each in passes)))))
        optimizer.step()
    run.weights = _copy(model)
    with torch.no_grad():
        run.last = _computing(model, case)(first_inputs)
    return run


def _gradients(model: nn.Module, case: Case, seed: int, step: int, micro: int) -> list[list[Tensor]]:
    """For each rank the gradients of its batch, in fp32."""
    found = []
    for rank in range(dist.get_world_size()):
        computing = _computing(model, case)
        loss = loss_of(computing(_cast(case.inputs(seed, step, micro, rank), case)))
        found.append([each.float() for each in torch.autograd.grad(loss, list(computing.parameters()))])
    return found


def _computing(model: nn.Module, case: Case) -> nn.Module:
    """The model itself, or a copy of it in bf16."""
    if not case.bf16:
        return model
    with torch.random.fork_rng(devices=[]):
        copy = case.build(0)
    copy.load_state_dict(model.state_dict())
    return copy.bfloat16()


def _cast(inputs: Tensor, case: Case) -> Tensor:
    return inputs.bfloat16() if case.bf16 and inputs.is_floating_point() else inputs


def _copy(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def _clone(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach().clone()
