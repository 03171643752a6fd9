"""A lesson as a learner sees it: JupyterLab in a browser, Run All, a slider moved by keyboard."""

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
pytestmark = [pytest.mark.browser, pytest.mark.model]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A JupyterLab server over a copy of the lessons; gives its address."""
    if CHROMIUM is None:
        pytest.fail("no Chromium: install Debian's package chromium, or leave out these tests with -m 'not browser'")
    folder = tmp_path_factory.mktemp("lab")
    shutil.copytree(ROOT / "lessons", folder / "lessons")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    token = secrets.token_hex(8)
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--ServerApp.port={port}"]
    command += [f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={folder}"]
    environment = os.environ | {"JUPYTER_CONFIG_DIR": str(folder / "config"), "IPYTHONDIR": str(folder / "ipython")}
    server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(120):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/api/status?token={token}", timeout=2).read()
                break
            except OSError:
                time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/lab/tree/lessons/{{}}?token={token}"
    finally:
        server.terminate()
        server.wait(20)


def test_lesson_00_runs_in_jupyterlab_and_its_slider_moves_the_picture(lab):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.goto(lab.format("00_start_here.ipynb"), timeout=60_000)
        page.get_by_role("heading", name="00 · Start here").first.wait_for(timeout=60_000)
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.get_by_text("Run All Cells", exact=True).click()
        slider = page.locator(".widget-slider [role=slider]").first
        slider.wait_for(timeout=180_000)
        output = page.locator(".widget-html-content", has_text=re.compile(r"gamma \d+:")).first
        before = output.inner_text()
        slider.focus()
        slider.press("ArrowRight")
        page.wait_for_function("([e, t]) => e.innerText !== t", arg=[output.element_handle(), before], timeout=60_000)
        assert re.search(r"gamma (\d+)", output.inner_text()).group() != re.search(r"gamma (\d+)", before).group()
        assert page.locator(".jp-RenderedText[data-mime-type='application/vnd.jupyter.stderr']").count() == 0
        browser.close()
