"""The `helpers` command: only wiring. Each command is a module with `configure` and `execute`."""

import argparse
import importlib
import sys

from helpers.errors import CourseError

COMMANDS = {
    "doctor": ("helpers.course.doctor", "say what this machine can do, and mend what it cannot"),
    "run": ("helpers.course.run", "run the notebooks for a target and write a report"),
    "report": ("helpers.course.report", "merge runs from several machines into one report"),
    "lab": ("helpers.course.lab", "open JupyterLab on the first page"),
    "labs": ("helpers.course.labs", "generate labs/ from solutions/"),
    "check": ("helpers.course.notebooks", "find, and with --fix mend, notebooks that break the rules"),
    "record": ("helpers.course.record", "measure what this machine can show, for lessons elsewhere"),
    "grade": ("helpers.course.grade", "check the exercises of lab notebooks without opening them"),
}


def main(argv: list[str] | None = None) -> int:
    """Run one command; return its exit code: 0 good, 1 a finding, 2 an error of use."""
    arguments = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(prog="helpers", description="From Shards to Shaders: the course's tools")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        if name in arguments[:1]:
            importlib.import_module(module).configure(command)
    args = parser.parse_args(arguments)
    try:
        return importlib.import_module(COMMANDS[args.command][0]).execute(args)
    except CourseError as error:
        print(f"helpers {args.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"helpers {args.command}: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
