"""Read a report with NVIDIA's wheel in a process of its own: `python ncu_rep_child.py REPORT ANSWER.json`.

It imports nothing of the course, and nobody imports it: the wheel aborts its process on some damaged files.
"""

import json
import sys

import ncu_report


def plain(action) -> dict:
    """A kernel in plain types: its name, {metric: [value, unit]}, and [[rule, message]]."""
    metrics = {name: action.metric_by_name(name) for name in action.metric_names()}
    return {
        "name": action.name(action.NameBase_DEMANGLED) or "",
        "metrics": {name: [metric.value(), metric.unit()] for name, metric in metrics.items()},
        "rules": [[rule["rule_identifier"], rule.get("rule_message")] for rule in action.rule_results_as_dicts()],
    }


def kernels(report: str) -> list[dict]:
    """The kernels of a report, range by range."""
    context = ncu_report.load_report(report)
    ranges = [context.range_by_idx(index) for index in range(context.num_ranges())]
    return [plain(each.action_by_idx(index)) for each in ranges for index in range(each.num_actions())]


if __name__ == "__main__":
    found = kernels(sys.argv[1])
    with open(sys.argv[2], "w", encoding="utf-8") as stream:
        json.dump(found, stream)
