"""The three parts of the colleague's loop as they were found. Each gives right results, and each is slow."""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.profiler import record_function


def batches(
    text: str, encode: Callable[[str], list[int]], context: int, batch: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless (inputs, targets), each (batch, context) int64: windows of the text in order, round and round."""
    place = 0
    while True:
        tokens = torch.tensor(encode(text))
        windows = (len(tokens) - 1) // context
        rows = []
        for _ in range(batch):
            start = place % windows * context
            rows.append(tokens[start : start + context + 1])
            place += 1
        block = torch.stack(rows)
        yield block[:, :-1].contiguous(), block[:, 1:].contiguous()


def run(step: Callable[[], Tensor], steps: int, every: int, report: Callable[[int, float], object]) -> None:
    """Step `steps` times; after every `every` steps, and at the end, report the mean loss since the last report."""
    losses = []
    for done in range(1, steps + 1):
        loss = step()
        with record_function("report"):
            losses.append(loss.item())
            if done % every == 0 or done == steps:
                report(done, sum(losses) / len(losses))
                losses = []


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention: token t mixes the values of tokens 0 … t. All are (B, H, T, D)."""
    mixed = []
    for t in range(q.shape[2]):
        scores = q[:, :, t : t + 1] @ k[:, :, : t + 1].transpose(-2, -1) / math.sqrt(q.shape[-1])
        mixed.append(scores.softmax(dim=-1) @ v[:, :, : t + 1])
    return torch.cat(mixed, dim=2)
