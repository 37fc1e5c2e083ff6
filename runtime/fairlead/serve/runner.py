"""Executes one run, apart from the server: ``python -m fairlead.serve.runner FOLDER``."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from fairlead.base.process import PYTHON, tied_to
from fairlead.serve.runs import CANCEL, LOCK, WORK, End, order_in, write_end

_LOOK_S = 0.3
_PATIENCE_S = 40.0  # after SIGTERM; `fairlead` gives its ranks 30 s


def main(folder: Path) -> int:
    """Runs the order in ``folder`` to its end, its limit, or its cancellation."""
    order = order_in(folder)
    with tempfile.NamedTemporaryFile(dir=folder) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            os.link(lock.name, folder / LOCK)  # it is held from the moment it has its name
        except FileExistsError:
            return 0  # another runner has it
        started = time.time()
        if (folder / CANCEL).exists():
            write_end(folder, End(None, started, started, "cancelled"))
            return 0
        # If this process is killed, nobody would write how the run ended: it does not go on alone.
        with_runner = tied_to(os.getpid())
        process = subprocess.Popen(
            [*PYTHON, "-m", "fairlead", *order.words],
            cwd=folder / WORK, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=with_runner,
        )  # fmt: skip
        why = _watch(process, folder, order.limit_s)
        write_end(folder, End(process.returncode, started, time.time(), why))
    return 0


def _watch(process: subprocess.Popen[bytes], folder: Path, limit_s: float) -> str:
    """Waits for the end; why it was brought about, if it was."""
    until, why = time.monotonic() + limit_s, ""
    while True:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_LOOK_S)
            return why
        if why:
            if time.monotonic() > until:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        elif (folder / CANCEL).exists() or time.monotonic() > until:
            why = "cancelled" if (folder / CANCEL).exists() else f"time limit of {limit_s:.0f} s"
            until = time.monotonic() + _PATIENCE_S
            process.terminate()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
