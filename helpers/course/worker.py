"""The process of one notebook: papermill's Python API, and the exception that it met.

    python -m helpers.course.worker JOB.json

The job names source, output, parameters, timeout_s, folder and result. The result file holds null
when no exception came, or the state, reason and cell. papermill's own metadata is never read: it
says "completed" after a dead kernel.
"""

import json
import sys
from pathlib import Path

from helpers.course.files import write_atomically

MAX_WHY = 4000


def execute(job: dict) -> dict | None:
    """Run the notebook; None, or `state`, `why` and `cell` of the exception that ended it."""
    import papermill
    from nbclient.exceptions import CellTimeoutError, DeadKernelError
    from papermill.exceptions import PapermillExecutionError

    try:
        papermill.execute_notebook(
            job["source"],
            job["output"],
            parameters=job["parameters"],
            kernel_name="python3",
            cwd=job["folder"],
            execution_timeout=job["timeout_s"],
            progress_bar=False,
            log_output=False,
        )
    except PapermillExecutionError as error:
        return _ended("fail", f"{error.ename}: {error.evalue}", _failed_cell(job["output"]))
    except CellTimeoutError as error:
        return _ended("timeout", str(error).splitlines()[0])
    except DeadKernelError:
        return _ended("kernel died", "the kernel died while a cell ran")
    except Exception as error:
        return _ended("fail", f"could not run: {type(error).__name__}: {error}")
    return None


def _ended(state: str, why: str, cell: str = "") -> dict:
    return {"state": state, "why": why[:MAX_WHY], "cell": cell}


def _failed_cell(output: str) -> str:
    """The id of the cell whose output is an error: papermill's own index is off by what it inserts."""
    import nbformat

    for cell in nbformat.read(output, as_version=4).cells:
        if any(out.output_type == "error" for out in cell.get("outputs", ())):
            return cell.id
    return ""


def main() -> int:
    """Run the job that the first argument names, and write its result."""
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    write_atomically(Path(job["result"]), json.dumps(execute(job)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
