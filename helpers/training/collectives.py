"""Count the collectives of a piece of work, and predict them."""

from collections.abc import Callable
from dataclasses import dataclass

import torch.distributed as dist  # noqa: F401  registers the c10d operators
from torch.distributed.tensor.debug import CommDebugMode


@dataclass(frozen=True)
class Collectives:
    """How often a rank took part in each collective."""

    all_gather: int
    reduce_scatter: int


def predict_collectives(groups: int, reshard_after_forward: bool = True) -> Collectives:
    """The collectives of one forward and backward with `groups` groups, the root's among them.

    Each group is gathered before its forward: G. Backward gathers again what was resharded, which
    is every group but the root's: G − 1 more. Each group's gradients are reduced once: G.
    """
    again = groups - 1 if reshard_after_forward else 0
    return Collectives(all_gather=groups + again, reduce_scatter=groups)


def count_collectives(work: Callable[[], object]) -> Collectives:
    """Run `work()` on this rank and count, with `CommDebugMode`, the collectives it starts."""
    with CommDebugMode() as mode:
        work()
    counts = {str(operator): count for operator, count in mode.get_comm_counts().items()}
    return Collectives(
        all_gather=_sum(counts, "allgather", "all_gather"),
        reduce_scatter=_sum(counts, "reduce_scatter"),
    )


def _sum(counts: dict[str, int], *words: str) -> int:
    return sum(count for operator, count in counts.items() if any(word in operator for word in words))
