"""A notebook in a real browser: opened, run on ranks, closed in the middle of a cell, and opened again."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from tests.system import browser, notebooks
from tests.system.browser import Page
from tests.system.notebooks import waited

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(browser.found() is None, reason="no Chromium"),
]
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
