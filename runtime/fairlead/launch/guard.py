"""While a launch may begin again, another node of its job watches the one that fairlead runs on."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from fairlead.schedulers.model import Allocation
from fairlead.schedulers.registry import SCHEDULERS

_END_S = 5.0


@contextmanager
def guarded(allocation: Allocation | None, environ: Mapping[str, str]) -> Iterator[None]:
    """Runs the guard of the job's scheduler, where it has one; a guard that cannot start is left out."""
    scheduler = SCHEDULERS.get(allocation.scheduler) if allocation else None
    words, env = scheduler.guard(allocation, environ) if scheduler and allocation else ((), {})
    process = None
    if words:
        with suppress(OSError):
            process = subprocess.Popen(
                words,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the ranks
            )
    try:
        yield
    finally:
        if process:
            process.terminate()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
