"""A student's first minute: JupyterLab opens `00_start_here`, runs it, and a slider answers."""

import os
import re
import shutil
import socket
import subprocess
import time
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from helpers.course import lab

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextmanager
def jupyter_lab(root: Path):
    """A JupyterLab server over `root`; yields the address of the first page; always stopped."""
    port = free_port()
    options = [
        "--no-browser",
        f"--port={port}",
        "--ip=127.0.0.1",
        "--IdentityProvider.token=",
        "--LabApp.news_url=",
    ]
    log = (root / "jupyter.log").open("w")
    own = {"JUPYTERLAB_SETTINGS_DIR": str(settings(root)), "JUPYTERLAB_WORKSPACES_DIR": str(root / "workspaces")}
    environment = os.environ | own
    server = subprocess.Popen(lab.command(options, root), stdout=log, stderr=log, env=environment)
    try:
        wait_for(f"http://127.0.0.1:{port}/api/status", server, root / "jupyter.log")
        yield f"http://127.0.0.1:{port}/lab/tree/{lab.FIRST_PAGE}"
    finally:
        server.terminate()
        server.wait(timeout=30)
        log.close()


def settings(root: Path) -> Path:
    """JupyterLab draws only the cells in view unless it is told to draw all, which the test looks at."""
    folder = root / "settings"
    file = folder / "@jupyterlab/notebook-extension/tracker.jupyterlab-settings"
    file.parent.mkdir(parents=True)
    file.write_text('{"windowingMode": "none"}')
    return folder


def wait_for(url: str, server: subprocess.Popen, log: Path) -> None:
    for _ in range(240):
        assert server.poll() is None, log.read_text()
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            time.sleep(0.5)
    raise AssertionError(f"JupyterLab did not answer: {log.read_text()}")


@pytest.fixture
def page(tmp_path):
    """The first page in headless Chromium, over a copy: JupyterLab saves what it runs."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: make test installs it")
    shutil.copytree(lab.ROOT / "notebooks", tmp_path / "notebooks")
    with jupyter_lab(tmp_path) as url, playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 1600})
        page.set_default_timeout(120_000)
        page.goto(url)
        yield page
        browser.close()


def run_all_cells(page) -> None:
    """Run the notebook and wait until its last cell has spoken."""
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status='idle']")
    first_prompt = page.locator(".jp-CodeCell .jp-InputPrompt").first  # its cell has no stored count
    for _ in range(8):  # JupyterLab may ignore a click while it still restores its layout
        answer_dialogs(page)
        run_from_menu(page)
        page.wait_for_timeout(5000)
        if first_prompt.inner_text().startswith(("[*]", "[1]")):
            break
    page.get_by_text("finished", exact=True).wait_for(state="attached")


def run_from_menu(page) -> None:
    """Run > Run All Cells; a dialog that comes in between is left for the next round."""
    from playwright.sync_api import TimeoutError as Covered

    with suppress(Covered):
        page.locator(".lm-MenuBar-itemLabel", has_text=re.compile("^Run$")).click(timeout=10_000)
        page.locator(".lm-Menu-itemLabel", has_text=re.compile("^Run All Cells$")).click(timeout=10_000)


def answer_dialogs(page) -> None:
    """On a loaded machine JupyterLab may call its server slow, or ask for the kernel: take what it proposes."""
    for dialog in page.locator(".jp-Dialog").all():
        print("JupyterLab says:", dialog.inner_text())
        dialog.locator(".jp-mod-accept").click()
        page.wait_for_timeout(500)


def test_the_first_page_runs_and_its_slider_moves(page):
    run_all_cells(page)
    slider = page.locator(".widget-slider [role=slider], .widget-slider .noUi-handle").first
    slider.wait_for(state="attached")
    assert page.locator(".jp-OutputArea-output[data-mime-type='application/vnd.jupyter.stderr']").count() == 0
    answer = page.locator(".course-slider-answer").first
    before = answer.inner_text()
    slider.scroll_into_view_if_needed()
    slider.focus()
    slider.press("ArrowRight")
    page.wait_for_function(
        "before => document.querySelector('.course-slider-answer').innerText != before", arg=before
    )
    assert answer.inner_text() != before
