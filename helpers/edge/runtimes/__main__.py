"""python -m helpers.edge.runtimes WEIGHTS LENGTH RUNTIME…: what runtimes of this environment do with a model.

One process for each environment, for not all runtimes fit into one. WEIGHTS is a file of `write_weights` with the
parameters as they are. The first line that comes back is a JSON list of findings, after LENGTH tokens. Then each
line in, `RUNTIME<tab>COUNT`, is answered by the seconds of one of COUNT tokens, until the input ends. What the
libraries print goes to stderr.
"""

import json
import os
import sys
from dataclasses import fields

from helpers.edge.decode import DecoderConfig
from helpers.edge.runtimes import RUNTIMES, Finding, examine, seconds_per_token, some_tokens
from helpers.edge.weights import open_weights


def main(path: str, length: int, names: list[str]) -> None:
    """Examine, then time on demand."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    weights = open_weights(path)
    config, parameters = DecoderConfig.of(weights.config), dict(weights)
    tokens = some_tokens(config, length)
    asked = [runtime for runtime in RUNTIMES if runtime.name in names]
    found = [examine(runtime, config, parameters, tokens) for runtime in asked]
    answers.write(json.dumps([_plain(finding) for finding in found]) + "\n")
    sessions = {finding.runtime: finding.session for finding in found}
    for line in sys.stdin:
        name, count = line.rstrip("\n").split("\t")
        answers.write(f"{seconds_per_token(sessions[name], int(count))}\n")


def _plain(finding: Finding) -> dict:
    return {each.name: getattr(finding, each.name) for each in fields(finding) if each.name != "session"}


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
