"""Distil the recorded torch traces that lessons read into helpers/profiling/recordings/traces.

python tools/distil_trace.py FOLDER_OF_TRACES [TARGET_FOLDER]

The traces stay where they are; a test runs this and compares.
"""

import argparse
import gzip
import json
from datetime import UTC, datetime
from pathlib import Path

from helpers.profiling.distilled import distil_trace
from helpers.profiling.health import health
from helpers.profiling.recordings import TRACES
from helpers.profiling.trace import read_trace

CHOSEN = {
    "h100_bert_small": (
        "tracelens_h100_bert_small.pt.trace.json.gz",
        "one forward of BERT-small in bf16, one sequence of 141 tokens, in eager mode",
        "AMD-AGI/TraceLens @171dd747, tests/traces/h100",
    ),
    "mi300x_compiled_block": (
        "tracelens_mi300x_compile_triton.pt.trace.json.gz",
        "one forward of a transformer block through torch.compile: 8 sequences of 4096 tokens, width 2048",
        "AMD-AGI/TraceLens @171dd747, tests/traces/torch_compile_triton",
    ),
}


def content_of(folder: Path, name: str) -> dict:
    """What the JSON of one recording holds."""
    file, what, source = CHOSEN[name]
    trace = read_trace(folder / file)
    return {
        "what": what,
        "device": trace.devices[0],
        "date": _date(folder / file),
        "tool": "torch.profiler",
        "source": source,
        "licence": "MIT",
        "doubts": [problem.what for problem in health(trace)],
        "trace": distil_trace(trace),
    }


def _date(path: Path) -> str:
    """The day (UTC) of the first event: Kineto counts microseconds from a base that it names."""
    content = json.loads(gzip.decompress(path.read_bytes()), strict=False)
    first = min(event["ts"] for event in content["traceEvents"] if event.get("ph") == "X")
    return datetime.fromtimestamp(content["baseTimeNanoseconds"] / 1e9 + first / 1e6, UTC).date().isoformat()


def main() -> None:
    """Write one JSON for each chosen trace, and name it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", type=Path)
    parser.add_argument("target", type=Path, nargs="?", default=TRACES)
    args = parser.parse_args()
    args.target.mkdir(parents=True, exist_ok=True)
    for name in CHOSEN:
        path = args.target / f"{name}.json"
        path.write_text(json.dumps(content_of(args.traces, name), separators=(",", ":"), ensure_ascii=False) + "\n")
        print(f"{path.stat().st_size:6} B  {path.name}")


if __name__ == "__main__":
    main()
