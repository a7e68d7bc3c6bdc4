"""Start the training script as a cluster would: with `torchrun`, outside the notebook."""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from helpers.errors import CourseError

ROOT = Path(__file__).parents[2]
QUOTED_LINES = 6


class LaunchError(CourseError):
    """`torchrun` ended badly, or not in time."""


@dataclass(frozen=True)
class ScriptRun:
    """What the script printed, and its metrics: one dict a step, as `StepMetrics.to_json`."""

    printed: str
    metrics: tuple[dict, ...]


def torchrun(ranks: int, *options: str, deadline_s: float = 120.0) -> ScriptRun:
    """`torchrun --nproc_per_node=RANKS -m helpers.training.train OPTIONS`, on a free port.

    Raises `LaunchError` with the script's last words when it fails or misses the deadline; no
    process is left behind.
    """
    # The machine's own name may not resolve, on a laptop without a network for one.
    meet = ["--standalone", "--local-addr=127.0.0.1"]
    launcher = ["-m", "torch.distributed.run", *meet, f"--nproc_per_node={ranks}"]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "metrics.jsonl")
        script = ["-m", "helpers.training.train", *options, "--metrics", str(file)]
        done = _run([sys.executable, *launcher, *script], deadline_s)
        lines = file.read_text(encoding="utf-8").splitlines()
    return ScriptRun(done, tuple(map(json.loads, lines)))


def _run(command: list[str], deadline_s: float) -> str:
    environment = dict(os.environ) | {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), *sys.path]))}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            printed, words = process.communicate(timeout=deadline_s)
        except BaseException as error:
            process.terminate()  # torchrun passes it on to its ranks
            process.communicate()
            if isinstance(error, subprocess.TimeoutExpired):
                raise LaunchError(
                    f"torchrun did not end within {deadline_s:g} s", mend="ask for fewer --steps"
                ) from None
            raise
    if process.returncode:
        said = [line for line in words.splitlines() if line.startswith("train: ")]
        last = "\n".join(said[:1] or words.strip().splitlines()[-QUOTED_LINES:])
        raise LaunchError(f"torchrun ended with exit code {process.returncode}:\n{last}", mend="run it in a terminal")
    return printed
