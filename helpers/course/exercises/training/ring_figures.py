"""Pictures of a collective on the in-process network: which chunk is where, and who sends how much."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from helpers.course.exercises.training.ring_network import run_ranks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Panel = list[list[str]]
"""A moment: for each rank and each chunk, what the rank holds of it, '' for nothing."""


def gather_panels(all_gather: Callable, world: int) -> list[Panel]:
    """Which chunks each rank holds at each tick of `all_gather`: its number, where it is held."""
    import torch

    traffic = run_ranks(all_gather, [torch.tensor([rank]) for rank in range(world)])
    panel = [["" if chunk != rank else str(chunk) for chunk in range(world)] for rank in range(world)]
    panels = [panel]
    for tick in range(traffic.ticks):
        panel = [list(row) for row in panel]
        for message in traffic.messages:
            for chunk in message.tensor.tolist() if message.tick == tick else ():
                panel[message.to][chunk] = str(chunk)
        panels.append(panel)
    return panels


def reduce_panels(reduce_scatter: Callable, world: int) -> list[Panel]:
    """Which partial sum each rank holds at each tick of `reduce_scatter`: the ranks that are in it.

    Rank r puts 2^r into every chunk, so that a sum tells its terms, and the chunk's number beside it.
    """
    import torch

    numbers = torch.arange(world)
    inputs = [torch.stack([torch.full((world,), 2**rank), numbers], dim=1) for rank in range(world)]
    messages = run_ranks(reduce_scatter, inputs).messages
    panels = [[[""] * world for _ in range(world)] for _ in range(max(each.tick for each in messages) + 2)]
    for message in messages:
        for bits, label in message.tensor.tolist():
            terms = [rank for rank in range(world) if bits & 2**rank]
            chunk = label // len(terms)
            panels[message.tick][message.source][chunk] = _terms(terms)
            panels[message.tick + 1][message.to][chunk] = _terms([*terms, message.to])
    return panels


def _terms(ranks: Sequence[int]) -> str:
    return "+".join(map(str, sorted(set(ranks))))


def panels_figure(panels: Sequence[Panel]) -> "Figure":
    """One grid a tick, ranks down and chunks across: grey is held, hatched has just arrived."""
    from matplotlib import pyplot

    world = len(panels[0])
    figure, all_axes = pyplot.subplots(
        1, len(panels), figsize=(0.3 + 2.3 * len(panels), 2.5), layout="constrained", squeeze=False
    )
    for step, (axes, panel) in enumerate(zip(all_axes[0], panels)):
        before = panels[step - 1] if step else panel
        for rank, row in enumerate(panel):
            for chunk, text in enumerate(row):
                _cell(axes, chunk, rank, text, new=text != before[rank][chunk])
        axes.set(xlim=(-0.02, world), ylim=(world, -0.02), xticks=[], yticks=[])
        axes.set_xticks([chunk + 0.48 for chunk in range(world)], range(world))
        axes.set_title("before" if not step else f"after step {step}", fontsize=10)
        axes.set_xlabel("chunk", fontsize=9)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    all_axes[0][0].set_yticks([rank + 0.48 for rank in range(world)], [f"rank {rank}" for rank in range(world)])
    return figure


def _cell(axes, chunk: int, rank: int, text: str, new: bool) -> None:
    from matplotlib import pyplot

    look = {
        "facecolor": "#d0d0d0" if text else "white",
        "edgecolor": "#555555",
        "hatch": "///" if new and text else "",
    }
    axes.add_patch(pyplot.Rectangle((chunk, rank), 0.96, 0.96, linewidth=0.8, **look))
    label = {"facecolor": "white", "edgecolor": "none", "pad": 1} if text else None
    axes.text(
        chunk + 0.48, rank + 0.48, text, ha="center", va="center", fontsize=7 if len(text) < 6 else 6, bbox=label
    )


def shares_figure(worlds: Sequence[int], panels: Mapping[str, Mapping[str, Sequence[float]]]) -> "Figure":
    """Bars over the number of ranks, a panel a title: shares of the whole tensor, by way of sending it.

    worlds: numbers of ranks. panels: by title, then by the name of the way, one share a number of ranks.
    """
    from matplotlib import pyplot

    looks = (("#bbbbbb", ""), ("#e8e8e8", "..."), ("#555555", ""))
    figure, all_axes = pyplot.subplots(1, len(panels), figsize=(10, 3.2), layout="constrained", squeeze=False)
    for axes, (title, ways) in zip(all_axes[0], panels.items()):
        width = 0.8 / len(ways)
        for number, (name, shares) in enumerate(ways.items()):
            places = [place + (number - (len(ways) - 1) / 2) * width for place in range(len(worlds))]
            color, hatch = looks[number % len(looks)]
            bars = axes.bar(places, shares, width, label=name, color=color, hatch=hatch, edgecolor="#333333")
            axes.bar_label(bars, [f"{share:.2g}" for share in shares], fontsize=7, padding=2)
        axes.set_xticks(range(len(worlds)), worlds)
        axes.set(title=title, xlabel="ranks", ylabel="times the whole tensor")
        axes.margins(y=0.12)
    all_axes[0][0].legend(loc="upper left", fontsize=8)
    return figure
