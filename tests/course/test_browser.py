"""A lesson as a learner sees it: JupyterLab in a browser, Run All, a slider moved by keyboard.

The waits are long, since a busy laptop is a normal machine; each says what it waited for.
"""

import contextlib
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
from support.paths import ROOT

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.model,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium"),
]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
PAGE_S, LESSON_S = 300, 900


@contextlib.contextmanager
def waiting(what):
    """Turns a wait that ran out into a failure that says what was waited for."""
    from playwright.sync_api import TimeoutError

    start = time.monotonic()
    try:
        yield
    except TimeoutError as error:
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
        pytest.fail(f"waited {time.monotonic() - start:.0f} s for {what} (load of the machine {load:.1f}): {error}")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A JupyterLab server over a copy of the lessons; gives its address."""
    folder = tmp_path_factory.mktemp("lab")
    shutil.copytree(ROOT / "lessons", folder / "lessons")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    token = secrets.token_hex(8)
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--ServerApp.port={port}"]
    command += [f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={folder}"]
    environment = os.environ | {"JUPYTER_CONFIG_DIR": str(folder / "config"), "IPYTHONDIR": str(folder / "ipython")}
    log = folder / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        until = time.monotonic() + PAGE_S
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/api/status?token={token}", timeout=30).read()
                break
            except OSError:
                tail = log.read_text(encoding="utf-8", errors="replace")[-2000:]
                assert server.poll() is None, f"JupyterLab ended at its start:\n{tail}"
                assert time.monotonic() < until, f"JupyterLab did not answer within {PAGE_S} s:\n{tail}"
                time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/lab/tree/lessons/{{}}?token={token}"
    finally:
        server.terminate()
        try:
            server.wait(120)
        except subprocess.TimeoutExpired:
            server.kill()


def test_lesson_00_runs_in_jupyterlab_and_its_slider_moves_the_picture(lab):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=1000 * PAGE_S)
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.set_default_timeout(1000 * PAGE_S)
        with waiting("JupyterLab to open the lesson"):
            page.goto(lab.format("00_start_here.ipynb"))
            page.get_by_role("heading", name="00 · Start here").first.wait_for()
        with waiting("the menu Run > Run All Cells"):
            page.get_by_role("menuitem", name="Run", exact=True).click()
            page.get_by_text("Run All Cells", exact=True).click()
        slider = page.locator(".widget-slider [role=slider]").first
        with waiting("the lesson's cells to run, up to the one with the slider"):
            slider.wait_for(timeout=1000 * LESSON_S)
        output = page.locator(".widget-html-content", has_text=re.compile(r"gamma \d+:")).first
        before = output.inner_text()
        with waiting("the picture to change after the slider moved"):
            slider.focus()
            slider.press("ArrowRight")
            page.wait_for_function("([e, t]) => e.innerText !== t", arg=[output.element_handle(), before])
        assert re.search(r"gamma (\d+)", output.inner_text()).group() != re.search(r"gamma (\d+)", before).group()
        assert page.locator(".jp-RenderedText[data-mime-type='application/vnd.jupyter.stderr']").count() == 0
        browser.close()
