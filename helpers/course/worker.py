"""One notebook in one process: papermill's Python API, and what it raised, as a JSON file.

Run as `python -m helpers.course.worker JOB.json`. The runner above it enforces the time limit and
kills what is left over.
"""

import json
import sys
from pathlib import Path

from helpers.course.files import write_atomically

EXCERPT = 2000


def execute_notebook(job: dict) -> dict:
    """Execute `job["source"]` into `job["draft"]`; return {state, cell, error}.

    state: `ended` when no cell raised (the runner then looks for the sentinel), `fail`, `timeout` or
    `kernel died`. cell: 0-based index in the executed notebook, or None. error: exception and value.
    """
    import papermill
    from nbclient.exceptions import CellTimeoutError, DeadKernelError
    from papermill.exceptions import PapermillExecutionError

    try:
        papermill.execute_notebook(
            job["source"],
            job["draft"],
            parameters=job["parameters"],
            kernel_name="python3",
            cwd=str(Path(job["source"]).parent),
            progress_bar=False,
            log_output=False,
        )
    except PapermillExecutionError as error:
        return _outcome("fail", f"{error.ename}: {error.evalue}", error.cell_index)
    except CellTimeoutError as error:
        return _outcome("timeout", str(error))
    except DeadKernelError as error:
        return _outcome("kernel died", str(error))
    except Exception as error:
        return _outcome("fail", f"{type(error).__name__}: {error}")
    return _outcome("ended", "")


def _outcome(state: str, error: str, cell: int | None = None) -> dict:
    return {"state": state, "cell": cell, "error": error[:EXCERPT]}


if __name__ == "__main__":
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    write_atomically(Path(job["result"]), json.dumps(execute_notebook(job)))
