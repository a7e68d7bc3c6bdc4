"""`helpers run`: every notebook for one target, each in its own process, and an honest report."""

import argparse
import contextlib
import fnmatch
import hashlib
import importlib.metadata
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import nbformat
import psutil
from tqdm import tqdm

from helpers.course.catalogue import ROOT, Entry, catalogue
from helpers.course.files import write_atomically
from helpers.course.lesson import SENTINEL_KEY, TOKEN_VARIABLE
from helpers.course.report import GOOD, Result, State, matrix_text, read_summary, write_report
from helpers.errors import CourseError
from helpers.hardware import Capabilities
from helpers.hardware.capabilities import probe
from helpers.hardware.targets import FOLDER, Target, detect_target, load_target
from helpers.measure.show import METADATA_KEY

CHECK_KEY = "course_check"
OUTPUT_CAP = 200_000
ERROR_TAG = "papermill-error-cell-tag"  # papermill inserts such cells, which shifts the indices
PACKAGES = ("torch", "papermill", "nbclient", "ipykernel", "numpy")
TYPES = {"str": str, "int": int, "float": float, "bool": bool}


class RunError(CourseError):
    """A run that cannot start: an unknown parameter, a pattern that matches nothing, a bad run."""


def check_parameters(source: Path, parameters: dict) -> None:
    """Refuse names that the notebook does not declare, and values of another type than declared.

    papermill itself only warns, and then silently uses the default.
    """
    import papermill

    declared = papermill.inspect_notebook(str(source))
    for name, value in parameters.items():
        if name not in declared:
            names = ", ".join(declared) or "none"
            raise RunError(f"unknown parameter {name!r}", where=str(source), mend=f"it declares {names}")
        kind = TYPES.get(declared[name]["inferred_type_name"])
        if kind is not None and type(value) is not kind:
            what = f"parameter {name} is {value!r}, a {type(value).__name__}"
            raise RunError(what, where=str(source), mend=f"the notebook declares {kind.__name__}")


def machine() -> Capabilities:
    """What this machine has, its Vulkan devices counted when a loader is present."""
    found = probe()
    try:
        from helpers.edge.vulkan import devices

        return found.with_vulkan(tuple(device.kind for device in devices()))
    except (ImportError, OSError, AttributeError, CourseError):
        return found


def processes_of(token: str) -> list[psutil.Process]:
    """Every process whose environment carries `token`: kernels and ranks start their own sessions."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(TOKEN_VARIABLE) == token:
                found.append(process)
    return found


def kill_marked(token: str) -> None:
    """Kill every process that carries `token`, until none is left."""
    for _ in range(5):
        left = processes_of(token)
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=2)
        if not left:
            return


def run_notebook(entry: Entry, target: Target, here: Capabilities, folder: Path, parameters: dict) -> Result:
    """Run one notebook in its own process tree, bounded in time; write its page; judge it."""
    mode, why = entry.mode(here)
    base = {"notebook": entry.id, "target": target.name, "mode": mode, "why": why}
    try:
        check_parameters(entry.path, parameters)
    except RunError as error:
        return Result(**base, state=State.FAIL, error=str(error))
    token, start = uuid.uuid4().hex, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="course-run-") as scratch:
        job = {"source": str(entry.path.resolve()), "parameters": parameters}
        job |= {"draft": f"{scratch}/draft.ipynb", "result": f"{scratch}/result.json"}
        outcome, peak = _supervise(job, Path(scratch), token, target.timeout(entry.id))
        seconds = time.monotonic() - start
        base |= {"seconds": seconds, "peak_bytes": peak}
        draft = Path(job["draft"])
        if not draft.is_file():
            return Result(**base, state=State(outcome["state"].replace("ended", "fail")), error=outcome["error"])
        notebook = nbformat.read(draft, as_version=4)
    notebook.cells = [cell for cell in notebook.cells if ERROR_TAG not in cell.metadata.get("tags", ())]
    judged = judge(notebook, outcome, token, solution=entry.id.startswith("solutions/"))
    page = f"{target.name}/{entry.id}.html"
    _write_page(notebook, folder / page)
    return Result(**base, page=page, **judged)


def _supervise(job: dict, scratch: Path, token: str, limit_s: float) -> tuple[dict, int]:
    """Start the worker, sample its memory, stop it at `limit_s`; return its outcome and peak bytes.

    The peak is the sum of the resident sets of all processes: shared pages count once per process.
    """
    (scratch / "job.json").write_text(json.dumps(job), encoding="utf-8")
    command = [sys.executable, "-m", "helpers.course.worker", str(scratch / "job.json")]
    environment = os.environ | {TOKEN_VARIABLE: token}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}
    peak, end = 0, time.monotonic() + limit_s
    worker = subprocess.Popen(command, env=environment, start_new_session=True, **quiet)
    try:
        while worker.poll() is None and time.monotonic() < end:
            peak = max(peak, sum(_resident(process) for process in processes_of(token)))
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.wait(timeout=0.5)
        late = worker.poll() is None
    finally:
        kill_marked(token)
        worker.wait()
    if late:
        return {"state": "timeout", "cell": None, "error": f"not done after {limit_s:g} s"}, peak
    if not Path(job["result"]).is_file():
        return {"state": "fail", "cell": None, "error": f"the worker ended with {worker.returncode}"}, peak
    return json.loads(Path(job["result"]).read_text(encoding="utf-8")), peak


def _resident(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.Error):
        return process.memory_info().rss
    return 0


def judge(notebook: nbformat.NotebookNode, outcome: dict, token: str, solution: bool) -> dict:
    """State, cell, error, quantities and checks of an executed notebook.

    Only what was raised and the sentinel with this run's token count; papermill's own metadata says
    "completed" after a dead kernel.
    """
    metadata = [output.get("metadata", {}) for cell in notebook.cells for output in cell.get("outputs", ())]
    quantities = [quantity for each in metadata for quantity in each.get(METADATA_KEY, ())]
    checks = [each[CHECK_KEY] for each in metadata if CHECK_KEY in each]
    finished = any(each.get(SENTINEL_KEY) == token for each in metadata)
    unsolved = [c["id"] for c in checks if solution and c["state"] not in ("PASS", "SKIPPED")]
    found = {"cell": outcome["cell"], "error": outcome["error"], "quantities": quantities, "checks": checks}
    if found["cell"] is not None:
        found["cell_id"] = notebook.cells[found["cell"]].get("id", "")
    if outcome["state"] != "ended":
        return found | {"state": State(outcome["state"])}
    if not finished:
        return found | {"state": State.FAIL, "error": "it ended without finish(): no sentinel of this run"}
    if unsolved:
        return found | {"state": State.FAIL, "error": f"checks not passed: {', '.join(unsolved)}"}
    if not quantities and not checks:
        return found | {"state": State.VACUOUS, "error": "it recorded no quantity and no check"}
    return found | {"state": State.PASS}


def _write_page(notebook: nbformat.NotebookNode, path: Path) -> None:
    """The executed notebook and its page, outputs capped, readable without a network."""
    from nbconvert import HTMLExporter

    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if len(output.get("text", "")) > OUTPUT_CAP:
                output.text = output.text[:OUTPUT_CAP] + "\n… cut here: the output was longer\n"
    write_atomically(path.with_suffix(".ipynb"), nbformat.writes(notebook))
    urls = ("require_js_url", "mathjax_url", "jquery_url", "mermaid_js_url", "jupyter_widgets_base_url")
    exporter = HTMLExporter(template_name="classic", **dict.fromkeys(urls, ""))
    write_atomically(path, exporter.from_notebook_node(notebook)[0])


def environment_hash(target: str) -> str:
    """Hash of Python, the packages, the helpers' sources and the target's file."""
    digest = hashlib.sha256(platform.python_version().encode())
    digest.update(json.dumps(packages()).encode())
    helpers = Path(__file__).parents[1]
    for path in sorted(p for p in helpers.rglob("*") if p.suffix in (".py", ".yaml", ".spv", ".json")):
        digest.update(path.read_bytes())
    digest.update((FOLDER / f"{target}.yaml").read_bytes())
    return digest.hexdigest()


def packages() -> dict[str, str]:
    """Versions of the packages that matter for a result."""
    return {name: importlib.metadata.version(name) for name in PACKAGES}


def provenance(root: Path, target: Target, here: Capabilities) -> dict:
    """Where the results come from: commit, Python, packages, capabilities, date, kind of host."""
    commit = _git(root, "rev-parse", "--short", "HEAD") or "nogit"
    return {
        "commit": commit,
        "dirty": bool(_git(root, "status", "--porcelain")),
        "python": platform.python_version(),
        "host": f"{platform.system()} {platform.machine()}",
        "packages": packages(),
        "machine": asdict(here),
        "target": target.name,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _git(root: Path, *words: str) -> str:
    with contextlib.suppress(OSError):
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""
    return ""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `helpers run`."""
    parser.add_argument("--target", help="a target's name; what this machine can do without it")
    parser.add_argument("--only", metavar="GLOB", default="*", help="notebook ids, as 'training/*'")
    parser.add_argument("--jobs", type=int, help="notebooks at a time; 1 on a GPU")
    parser.add_argument("--resume", nargs="?", const="", metavar="RUN", help="skip what passed, unchanged")
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--root", type=Path, default=ROOT, help="the folder that holds notebooks/")


def execute(args: argparse.Namespace) -> int:
    """Run, print the matrix and the report's path; 0 when all passed or were skipped."""
    here = machine()
    target = load_target(args.target or detect_target(here))
    entries = [entry for entry in catalogue(args.root) if fnmatch.fnmatch(entry.id, args.only)]
    if not entries:
        raise RunError(f"no notebook matches {args.only!r}", mend="ids look like training/01_fully_shard")
    about = provenance(args.root, target, here)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    earlier = _earlier(args)
    folder = args.out / f"{stamp}-{about['commit']}"
    results, interrupted = _run_all(entries, target, here, folder, earlier, args.jobs or 1)
    write_report(folder, results, [about])
    print(matrix_text(results), folder / "index.html", sep="\n")
    return 130 if interrupted else int(any(result.state not in GOOD for result in results))


def _earlier(args: argparse.Namespace) -> dict[str, Result]:
    """Results that may be carried over, by their key."""
    if args.resume is None:
        return {}
    runs = [Path(args.resume)] if args.resume else sorted(args.out.glob("*/summary.json"))[-1:]
    if not runs:
        return {}
    run = runs[0].parent if runs[0].name == "summary.json" else runs[0]
    return {r.key: r.moved(run.resolve()) for r in read_summary(run)[0] if r.state == State.PASS}


def _run_all(entries, target, here, folder, earlier, jobs) -> tuple[list[Result], bool]:
    """All results so far, and whether the run was interrupted."""
    results, environment, unmet = [], environment_hash(target.name), target.unmet(here)
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    def one(entry: Entry) -> Result:
        parameters = {"target": target.name}
        key = hashlib.sha256(
            entry.path.read_bytes() + json.dumps([entry.id, parameters, environment]).encode()
        ).hexdigest()
        if unmet:
            why = "needs " + ", ".join(unmet)
            return Result(entry.id, target.name, State.SKIPPED, error=why, key=key)
        if key in earlier:
            return earlier[key].carried()
        return run_notebook(entry, target, here, folder, parameters).keyed(key)

    pool = ThreadPoolExecutor(jobs)
    futures = [pool.submit(one, entry) for entry in entries]
    try:
        for done in tqdm(as_completed(futures), total=len(futures), disable=not sys.stderr.isatty()):
            results.append(done.result())
            tqdm.write(str(results[-1]))
    except KeyboardInterrupt:
        pool.shutdown(wait=False, cancel_futures=True)
        _kill_children()
        return results, True
    finally:
        pool.shutdown(cancel_futures=True)
    return results, False


def _kill_children() -> None:
    """Kill the workers; their supervisors then kill everything that carries their token."""
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            process.kill()
