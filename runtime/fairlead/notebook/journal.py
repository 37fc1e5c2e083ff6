"""What cells have put out, kept in the session's folder: a browser or a server that was away misses nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fairlead.notebook.settings import JOURNAL

_KINDS = frozenset(
    ("execute_input", "stream", "display_data", "update_display_data", "execute_result", "error", "clear_output")
)  # fmt: skip


class Journal:
    """Appends messages of a kernel, a line each."""

    def __init__(self, folder: Path):
        self._stream = (folder / JOURNAL).open("a", encoding="utf-8")
        (folder / JOURNAL).chmod(0o600)
        self._lock = threading.Lock()

    def note(self, kind: str, content: Any, parent: Any) -> None:
        """Keeps a message, if it is output of a cell."""
        if kind not in _KINDS:
            return
        cell = ((parent or {}).get("header") or {}).get("msg_id", "")
        line = json.dumps({"cell": cell, "kind": kind, "content": content}, default=str)
        with self._lock:
            self._stream.write(line + "\n")
            self._stream.flush()


def cells(folder: Path) -> list[dict[str, Any]]:
    """The cells that have run, in order: ``code`` and ``outputs``, as a notebook has them."""
    made: dict[str, dict[str, Any]] = {}
    for message in _messages(folder):
        cell = made.setdefault(message["cell"], {"code": "", "count": None, "outputs": []})
        _add(cell, message["kind"], message["content"])
    return [cell for cell in made.values() if cell["code"] or cell["outputs"]]


def _messages(folder: Path) -> Iterator[dict[str, Any]]:
    path = folder / JOURNAL
    if not path.exists():
        return
    for line in path.read_text("utf-8", errors="replace").splitlines():
        try:
            yield json.loads(line)
        except ValueError:  # the kernel was killed in the middle of it
            continue


def _add(cell: dict[str, Any], kind: str, content: dict[str, Any]) -> None:
    outputs = cell["outputs"]
    if kind == "execute_input":
        cell["code"], cell["count"] = content["code"], content.get("execution_count")
    elif kind == "clear_output":
        outputs.clear()
    elif kind == "update_display_data":
        wanted = (content.get("transient") or {}).get("display_id")
        for output in outputs:
            if wanted and output.get("transient", {}).get("display_id") == wanted:
                output["data"] = content["data"]
    elif kind == "stream" and outputs and outputs[-1].get("name") == content["name"]:
        outputs[-1]["text"] += content["text"]
    else:
        outputs.append({"output_type": kind, **content})


def notebook(folder: Path) -> dict[str, Any]:
    """All cells and their outputs as a document of nbformat 4.5."""
    return {
        "nbformat": 4, "nbformat_minor": 5, "metadata": {"language_info": {"name": "python"}},
        "cells": [
            {
                "cell_type": "code", "id": f"cell-{number}", "metadata": {}, "source": cell["code"],
                "execution_count": cell["count"],
                "outputs": [{k: v for k, v in o.items() if k != "transient"} for o in cell["outputs"]],
            }
            for number, cell in enumerate(cells(folder))
        ],
    }  # fmt: skip


def missed(folder: Path, shell: Any, count: int = 10) -> None:
    """Shows the latest cells and their outputs again, without the one that asks."""
    from IPython.display import display

    for cell in cells(folder)[-count - 1 : -1]:
        print(f"In [{cell['count']}]: {cell['code']}")
        for output in cell["outputs"]:
            if output["output_type"] == "stream":
                print(output["text"], end="")
            elif output["output_type"] == "error":
                print("\n".join(output["traceback"]))
            else:
                display(output["data"], metadata=output.get("metadata", {}), raw=True)
