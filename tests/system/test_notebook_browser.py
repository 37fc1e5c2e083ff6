"""A notebook in a real browser: opened, run on ranks, closed in the middle of a cell, and opened again; and by the library
of an editor."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest
from tests.support.object_stores import from_npm
from tests.system import browser, hosts, notebooks
from tests.system.browser import Page
from tests.system.notebooks import waited

pytestmark = pytest.mark.full
_TEXT = "document.querySelector('.jp-NotebookPanel') ? document.querySelector('.jp-NotebookPanel').innerText : ''"


def _document(*cells: str) -> str:
    made = [
        {"cell_type": "code", "id": f"c{n}", "metadata": {}, "execution_count": None, "outputs": [], "source": cell}
        for n, cell in enumerate(cells)
    ]  # fmt: skip
    spec = {"name": "fairlead", "display_name": "ranks", "language": "python"}
    return json.dumps(
        {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": spec}, "cells": made}
    )


def _opened(tab: Page, url: str, name: str) -> None:
    tab.show(1200)
    tab.open(url.replace("/lab?", f"/lab/tree/{name}?"))
    waited(lambda: "%%ranks" in tab.evaluate(_TEXT), "the notebook is not shown")
    idle = "document.querySelector('#jp-main-statusbar').innerText.includes('ranks | Idle')"
    waited(lambda: tab.evaluate(idle), "its kernel is not there")


def _run(tab: Page, number: int) -> None:
    """Clicks into a cell and types Shift-Enter, again until it has begun: the page moves while it is built."""
    prompt = f"document.querySelectorAll('.jp-NotebookPanel .jp-CodeCell .jp-InputPrompt')[{number}].innerText"
    for _ in range(10):
        _typed(tab, number)
        until = time.monotonic() + 6
        while time.monotonic() < until:
            if tab.evaluate(prompt).strip() not in ("[ ]:", ""):
                return
            time.sleep(0.1)
    raise AssertionError("the cell does not begin")


def _typed(tab: Page, number: int) -> None:
    where = tab.evaluate(
        f"(() => {{ const r = document.querySelectorAll('.jp-NotebookPanel .jp-CodeCell .cm-content')[{number}]"
        ".getBoundingClientRect(); return [r.x + 20, r.y + r.height / 2]; })()"
    )
    for kind in ("mousePressed", "mouseReleased"):
        tab.ask(
            "Input.dispatchMouseEvent",
            type=kind,
            x=where[0],
            y=where[1],
            button="left",
            clickCount=1,
        )
    for kind in ("rawKeyDown", "keyUp"):
        tab.ask(
            "Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, modifiers=8
        )  # fmt: skip


@pytest.mark.skipif(browser.found() is None, reason="no Chromium")
def test_cells_of_a_notebook_in_a_browser_run_on_ranks_and_outlive_it(tmp_path: Path) -> None:
    sums = "%%ranks\nprint('sum', comm.allreduce(rank + 1))"
    slow = "%%ranks\nimport time\nfor i in range(6): time.sleep(0.5); print('slow', i)"
    (tmp_path / "work.ipynb").write_text(_document(sums, slow, "%ranks missed"))
    with notebooks.notebook("tab", "--port", "18950", state=tmp_path) as session:
        waited(lambda: "JupyterLab" in session.printed(), "no JupyterLab")
        url = next(w for w in session.printed().split() if w.startswith("http://127"))
        with browser.page() as tab:
            _opened(tab, url, "work.ipynb")
            _run(tab, 0)
            waited(lambda: "] sum 3" in tab.evaluate(_TEXT), "no answer of the ranks")
            _run(tab, 1)
            waited(lambda: "] slow 0" in tab.evaluate(_TEXT), "the cell does not begin")
            tab.picture(tmp_path / "browser.png")
            assert "Jupyter news" not in tab.evaluate("document.body.innerText")
        with browser.page() as tab:  # another browser: the first one was killed
            _opened(tab, url, "work.ipynb")
            _run(tab, 2)
            waited(lambda: "] slow 5" in tab.evaluate(_TEXT), "what was printed meanwhile is lost")
            tab.picture(tmp_path / "again.png")


def test_library_of_vs_code_runs_interrupts_and_comes_back(tmp_path: Path) -> None:
    """VS Code's Jupyter extension has no release in a package index; it talks to servers by this library of JupyterLab's."""
    with notebooks.notebook("editor", "--port", "18951", state=tmp_path) as session:
        waited(lambda: "JupyterLab" in session.printed(), "no JupyterLab")
        url = next(w for w in session.printed().split() if w.startswith("http://127"))
        base, _, token = url.partition("/lab?token=")
        request = {
            "url": base,
            "token": token,
            "modules": str(from_npm("@jupyterlab/services@7.6.6")),
            "cells": [
                {"code": "%%ranks\ncomm.allreduce(rank + 1)"},
                {"code": "%%ranks\nprint('begun'); comm.recv() if rank else __import__('time').sleep(600)", "interrupt": "begun"},
                {"code": "%%ranks\nrank"},
            ],
            "again": "%ranks",
        }  # fmt: skip
        done = subprocess.run(
            ["node", str(hosts.PROGRAMS / "jupyter_services.js")],
            input=json.dumps(request), capture_output=True, text=True, timeout=180, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout.splitlines()[-1])
        first, interrupted, after = answer["outcomes"]
        assert (first["text"], after["text"]) == ("Out[0-1]: 3\n", "Out[0]: 0\nOut[1]: 1\n")
        assert interrupted["error"] and "KeyboardInterrupt" in interrupted["text"]
        assert answer["language"] == "python" and "2 ranks: MPICH" in answer["again"]["text"]
