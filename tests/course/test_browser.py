"""Lessons as a learner sees them: JupyterLab in a browser, Run All, a slider moved by keyboard; every slider's width.

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

import nbformat
import pytest
from build_lessons import METADATA, read_source
from support.lessons import needed
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
    """A JupyterLab server over a copy of the lessons; gives an address for a lesson's name, and the folder."""
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
        yield f"http://127.0.0.1:{port}/lab/tree/lessons/{{}}?token={token}", folder
    finally:
        server.terminate()
        try:
            server.wait(120)
        except subprocess.TimeoutExpired:
            server.kill()


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=1000 * PAGE_S)
        yield browser
        browser.close()


@contextlib.contextmanager
def opened(browser, address, title):
    """A page with the notebook at `address`, all cells started."""
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.set_default_timeout(1000 * PAGE_S)
    with waiting("JupyterLab to open the lesson"):
        page.goto(address)
        page.get_by_role("heading", name=title).first.wait_for()
    with waiting("the menu Run > Run All Cells"):
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.get_by_text("Run All Cells", exact=True).click()
    yield page
    page.close()


def test_lesson_00_runs_in_jupyterlab_and_its_slider_moves_the_picture(lab, browser):
    address, _ = lab
    with opened(browser, address.format("00_start_here.ipynb"), "00 · Start here") as page:
        slider = page.locator(".widget-slider [role=slider]").first
        with waiting("the lesson's cells to run, up to the one with the slider"):
            slider.wait_for(timeout=1000 * LESSON_S)
        output = page.locator(".widget-html-content", has_text=re.compile(r"gamma \d+:")).first
        before = output.inner_text()
        with waiting("the picture to change after the slider moved"):
            slider.focus()
            slider.press("ArrowRight")
            page.wait_for_function("([e, t]) => e.innerText !== t", arg=[output.element_handle(), before])
        with waiting("the picture to be complete"):
            page.wait_for_function("e => !e.innerText.includes('computing')", arg=output.element_handle())
        assert output.inner_text() != before
        assert page.locator(".jp-RenderedText[data-mime-type='application/vnd.jupyter.stderr']").count() == 0


def with_widgets(source):
    """A notebook of those cells of a lesson that end in an explorer, and of what these need; None without one."""
    cells = [c.source for c in read_source(source).cells if c.cell_type == "code"]
    shown = [i for i, cell in enumerate(cells) if re.search(r"^course\.\w+_(explorer|stepper)\(", cell, re.MULTILINE)]
    chosen = sorted({n for i in shown for n in needed(cells, i)})
    code = [nbformat.v4.new_code_cell(cells[i]) for i in chosen]
    title = nbformat.v4.new_markdown_cell("# Sliders")
    return nbformat.v4.new_notebook(cells=[title, *code], metadata=METADATA) if shown else None


@pytest.mark.slow
@pytest.mark.parametrize("source", sorted((ROOT / "lessons" / "src").glob("*.py")), ids=lambda p: p.stem)
def test_every_slider_has_a_track_that_a_mouse_can_use(lab, browser, source):
    notebook = with_widgets(source)
    if notebook is None:
        pytest.skip("no slider in this lesson")
    address, folder = lab
    name = f"sliders_{source.stem}.ipynb"
    nbformat.write(notebook, folder / "lessons" / name)
    with opened(browser, address.format(name), "Sliders") as page:
        with waiting("the sliders to appear"):
            page.locator(".widget-slider [role=slider]").first.wait_for(timeout=1000 * LESSON_S)
        tracks = page.eval_on_selector_all(
            ".widget-slider",
            "all => all.map(s => [s.querySelector('.widget-label').innerText, "
            "s.querySelector('.slider-container').getBoundingClientRect().width])",
        )
    assert tracks and all(width >= 200 for _, width in tracks), tracks
