"""What is known of the machine, in addition to what is measured."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def load() -> float | None:
    """Processes that want to run, mean of the last minute; None where the system does not say."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def machine_facts() -> dict[str, str]:
    """Of the machine that this runs on: kernel and processor."""
    return {"kernel": platform.release(), "processor": _processor()}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )
