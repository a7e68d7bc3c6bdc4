"""Tokens a second of one model: the course's shaders in four precisions, PyTorch, and other people's runtimes.

python benchmarks/decode.py [--driver lavapipe] [--rounds 15] [--width 512] [--blocks 4] [--length 64]
    [--python OTHER/bin/python …] [--save FILE]

A step is one token with `length` others in the cache, its logits back on the host; a round takes a few. All
candidates are timed in the same rounds, in turns; PyTorch on one thread and on all, for its threads wait for one
another where other work runs, too. llama.cpp, MLX, ExecuTorch and IREE get the same fp32 parameters and run where
they are installed: in this environment, or in that of a --python, which needs numpy beside the runtime.
Everyone's logits are compared with float64 first. The bandwidth roof is STREAM's triad on the cores that torch uses.
--save writes the table that the lesson shows as recorded: its rates are medians of the rounds. On a busy
machine run all of it on one core (taskset -c 0), or it measures how long threads wait for one another.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import date
from pathlib import Path

import numpy as np
import side_by_side
import torch

from helpers.edge import decode_reference
from helpers.edge.decode import Decoder, DecoderConfig, Precision, rate, serving_tensors, share_of_roof
from helpers.edge.runtimes import (
    RUNTIMES,
    Finding,
    RecordedRuntimes,
    Session,
    Verdict,
    bytes_per_token,
    examine,
    seconds_per_token,
    some_tokens,
    torch_eager,
)
from helpers.edge.runtimes.recorded import Line, write_recorded
from helpers.edge.vulkan import Device, driver, open_device
from helpers.edge.weights import open_weights, write_weights
from helpers.hardware.capabilities import usable_cores
from helpers.hardware.roofs import triad_roof
from helpers.measure import Quantity, Samples, Table, measured, predicted
from helpers.measure.stamps import device_name
from helpers.training.model import ModelConfig, build_model

ROOT = Path(__file__).parents[1]
STEPS = 8  # tokens that a round takes of each candidate
BEST = (Verdict.RAN, Verdict.EXPORTED, Verdict.FAILED, Verdict.MISSING)


class Candidates:
    """What takes part: how far each came, and for those that ran a call of `STEPS` tokens and the bytes of one."""

    def __init__(self):
        self.found: dict[str, Finding] = {}
        self.calls: dict[str, Callable[[], object]] = {}
        self.nbytes: dict[str, Quantity] = {}

    def add(self, finding: Finding, nbytes: Quantity, call: Callable[[], object]) -> None:
        """Keep the finding unless there is a better one of the same name."""
        before = self.found.get(finding.runtime)
        if before and BEST.index(before.verdict) <= BEST.index(finding.verdict):
            return
        self.found[finding.runtime] = finding
        if finding.verdict is Verdict.RAN:
            self.calls[finding.runtime], self.nbytes[finding.runtime] = call, nbytes


def main() -> None:
    """Print one table, after all candidates were compared with float64."""
    asked = _arguments()
    print(side_by_side.stamp("numpy"))
    shape = ModelConfig(asked.width, asked.blocks, asked.width // 64, 2 * asked.length, gated=True, rotary=True)
    made = build_model(shape, 0)
    config, roof = DecoderConfig.like(made.config), triad_roof(64).rate
    parameters = {name: value.numpy() for name, value in made.state_dict().items()}
    size = f"{sum(p.size for p in parameters.values()) / 1e6:.1f} M parameters"
    print(f"bandwidth roof {roof}; {size}")
    tokens, candidates = some_tokens(config, asked.length), Candidates()
    with (
        tempfile.TemporaryDirectory() as folder,
        open_device(driver=driver(asked.driver), validation=False) as device,
        ExitStack() as children,
    ):
        print(device.info.name, device.info.driver)
        plain = write_weights(Path(folder, "plain"), config, parameters)
        least = predicted(bytes_per_token(config, parameters, asked.length), "B", "weights + cache")
        pythons = (sys.executable, *asked.python)
        asking = [children.enter_context(_child(python, plain, asked.length)) for python in pythons]
        _add_shaders(candidates, device, config, parameters, tokens, Path(folder))
        _add_torch(candidates, config, parameters, tokens)
        for ask in asking:
            _add_others(candidates, ask, least)
        samples = side_by_side.in_turns(candidates.calls, asked.rounds)
        load = os.getloadavg()[0]
    samples = {name: Samples(tuple(s / STEPS for s in taken.seconds)) for name, taken in samples.items()}
    _print(candidates, samples, roof)
    if asked.save:
        what = f"a token after {asked.length} others, {size}, fp32 but for three of the shaders"
        lines = tuple(_line(finding, candidates, samples) for finding in candidates.found.values())
        table = RecordedRuntimes(
            what, device_name(), str(date.today()), load, usable_cores(), config, asked.length, roof.value, lines
        )
        print("written:", write_recorded(asked.save, table))


def _add_shaders(
    candidates: Candidates,
    device: Device,
    config: DecoderConfig,
    parameters: Mapping[str, np.ndarray],
    tokens: list[int],
    folder: Path,
) -> None:
    for precision in Precision:
        path = write_weights(folder / precision, config, serving_tensors(config, parameters, precision))
        start = time.perf_counter()
        decoder = Decoder(device, open_weights(path))
        ready = measured(time.perf_counter() - start, "s")
        print(f"{precision}: ready after {ready}, copied {decoder.copied_bytes} B")
        logits = np.stack([decoder.step(token) for token in tokens])
        truth = decode_reference.logits(config, decode_reference.rounded(parameters, precision), tokens)
        error = float(np.abs(logits - truth).max() / decode_reference.tolerance(config, truth))
        assert error <= 1, precision
        finding = Finding(f"shaders {precision}", device.info.driver, Verdict.RAN, error=error)
        candidates.add(finding, decoder.bytes_per_token(), _again(decoder, len(tokens)))


def _again(decoder: Decoder, length: int) -> Callable[[], object]:
    """The same tokens each time: the cache is cut back to where it was."""

    def steps() -> None:
        decoder.rewind(length)
        for _ in range(STEPS):
            decoder.step(7)

    return steps


def _add_torch(
    candidates: Candidates, config: DecoderConfig, parameters: Mapping[str, np.ndarray], tokens: list[int]
) -> None:
    nbytes = predicted(bytes_per_token(config, parameters, len(tokens)), "B", "weights + cache")
    for threads in sorted({1, torch.get_num_threads()}):
        found = examine(torch_eager.RUNTIME, config, parameters, tokens)
        finding = Finding(f"PyTorch, threads {threads}", found.version, found.verdict, found.why, found.error)
        candidates.add(finding, nbytes, _on_threads(found.session, threads))


def _on_threads(session: Session, threads: int) -> Callable[[], object]:
    def steps() -> None:
        torch.set_num_threads(threads)
        seconds_per_token(session, STEPS)

    return steps


def _add_others(candidates: Candidates, ask: Callable[[str], str], nbytes: Quantity) -> None:
    """What the runtimes of another environment do, in a process that stays for the timing."""
    for fields in json.loads(ask("")):
        finding = Finding(**fields | {"verdict": Verdict(fields["verdict"])})
        candidates.add(finding, nbytes, lambda name=finding.runtime: float(ask(f"{name}\t{STEPS}\n")))


@contextmanager
def _child(python: str, weights: Path, length: int) -> Iterator[Callable[[str], str]]:
    """A function that writes to the process and returns its next line."""
    environment, names = os.environ | {"PYTHONPATH": str(ROOT)}, [runtime.name for runtime in RUNTIMES[1:]]
    command = [python, "-m", "helpers.edge.runtimes", str(weights), str(length), *names]
    pipe = subprocess.PIPE
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, env=environment, text=True, stdin=pipe, stdout=pipe, stderr=said)

        def ask(line: str) -> str:
            process.stdin.write(line)
            process.stdin.flush()
            if answer := process.stdout.readline():
                return answer
            said.seek(0)
            raise RuntimeError(f"{python} ended: {said.read()[-2000:]}")

        try:
            yield ask
        finally:
            process.stdin.close()
            process.wait()
            process.stdout.close()


def _print(candidates: Candidates, samples: Mapping[str, Samples], roof: Quantity) -> None:
    best = min((name for name in samples if name.startswith("PyTorch")), key=lambda name: samples[name].median.value)
    rows = []
    for name, finding in candidates.found.items():
        if name not in samples:
            rows.append((name, finding.version, finding.verdict, *[""] * 6))
            continue
        taken, nbytes = samples[name], candidates.nbytes[name]
        seconds = taken.median.value
        share, over = share_of_roof(nbytes, seconds, roof), side_by_side.ratio(samples[best], taken)
        error, spread = measured(finding.error, ""), side_by_side.spread(taken)
        rows.append((name, finding.version, finding.verdict, rate(seconds), nbytes, share, error, over, spread))
    titles = ("tokens", "bytes a token", "of the roof", "off float64, tolerances", "over the best PyTorch", "spread")
    print(Table(("", "version", "", *titles), tuple(rows)))
    for name, finding in candidates.found.items():
        if finding.why:
            print(f"{name}: {finding.verdict}: {finding.why}")


def _line(finding: Finding, candidates: Candidates, samples: Mapping[str, Samples]) -> Line:
    name = finding.runtime
    if name not in samples:
        return Line(name, finding.version, finding.verdict, finding.why, finding.error)
    seconds, nbytes = samples[name].median.value, int(candidates.nbytes[name].value)
    return Line(name, finding.version, finding.verdict, "", finding.error, seconds, nbytes)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--driver", default="lavapipe")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--python", action="append", default=[], help="another environment's Python")
    parser.add_argument("--save", default="", help="write the table to this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
