"""A plugin of pytest for Horovod's test suite on ranks: writes each test's outcome, and a helper that the suite imports.

``FAIRLEAD_SUITE_RESULTS`` is the folder of the outcomes, a file for each rank with a line of JSON for each test.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

_RANK = next((os.environ[n] for n in ("PMI_RANK", "OMPI_COMM_WORLD_RANK") if n in os.environ), "0")


def in_thread(
    target: Callable[..., Any],
    args: Any = (),
    name: Any = None,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """What the suite's own helpers take from Horovod's launcher, which is not tested here."""
    thread = threading.Thread(target=target, args=args, name=name, daemon=daemon)
    thread.start()
    return thread


def get_env_rank_and_size() -> tuple[int, int]:
    """By the launcher's variables, as Horovod finds them."""
    size = next(
        (os.environ[n] for n in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE") if n in os.environ), "1"
    )
    return int(_RANK), int(size)


def pytest_configure() -> None:
    for below, helper in {
        "util.threads": in_thread,
        "common.util.env": get_env_rank_and_size,
    }.items():
        name = "horovod.runner"
        for part in ["", *below.split(".")]:
            name = f"{name}.{part}" if part else name
            module = sys.modules.setdefault(name, ModuleType(name))
            module.__path__ = []
        setattr(module, helper.__name__, helper)


def pytest_runtest_logreport(report: Any) -> None:
    if report.when != "call" and report.passed:
        return
    line = {"test": report.nodeid.rpartition("/")[2], "outcome": report.outcome}
    if report.failed:
        line["why"] = str(getattr(report.longrepr, "reprcrash", report.longrepr)).strip()[-600:]
    elif report.skipped:
        line["why"] = str(report.longrepr[-1])
    path = Path(os.environ["FAIRLEAD_SUITE_RESULTS"], f"rank.{_RANK}.jsonl")
    with path.open("a") as stream:
        stream.write(json.dumps(line) + "\n")
