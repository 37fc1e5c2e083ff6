"""What only a trial shows: memory read across processes, images mounted, clocks compared.

Each leaves nothing behind and ends by itself; ``engine_probe.py`` has the engine's own trials.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fairlead.base.process import Ran, run
from fairlead.doctor import cma_probe
from fairlead.doctor.engine_probe import make_image

# squashfuse_ll stays in the foreground, so that it ends with its mount namespace.
_MOUNT = """\
squashfuse_ll -f -o ro "$1" "$2" & server=$!
n=0
until [ -e "$2/etc/words" ]; do
    kill -0 $server 2>/dev/null || { wait $server; exit 1; }
    n=$((n + 1)); [ $n -lt 500 ] || { echo "not mounted after 10 s" >&2; kill $server; exit 1; }
    sleep 0.02
done
head -c 8 "$2/etc/words"; code=$?
kill $server; wait $server 2>/dev/null
exit $code
"""
_STA_UNSYNC = 0x40


@dataclass(frozen=True)
class ClockState:
    """How good a clock is.

    Attributes:
        synchronised: with another clock, as the kernel knows (adjtimex(2)); None where it does not say.
        error_s: its largest error as the kernel estimates it, seconds.
        slip_s: by how much the time of day and the monotonic clock went apart in a moment, seconds.
    """

    synchronised: bool | None
    error_s: float
    slip_s: float


def try_cma(environ: Mapping[str, str]) -> Ran:
    """See ``cma_probe.py``; isolated from the user's own Python, which it does not need."""
    return run((sys.executable, "-I", "-S", cma_probe.__file__), environ=environ, timeout_s=20)


def try_squashfuse(compression: str, environ: Mapping[str, str]) -> Ran:
    """Mounts a tiny squashfs as :mod:`fairlead.image.mount` does, and prints the first bytes of a file in it."""
    namespaces = ["--mount"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--mount"]
    with tempfile.TemporaryDirectory(prefix="fairlead-probe-") as folder:
        image, mount = Path(folder, "probe.squashfs"), Path(folder, "mount")
        mount.mkdir()
        made = make_image(image, compression)
        if made.returncode:
            return made
        tied = ("setpriv", "--pdeathsig", "KILL")
        argv = ("unshare", *namespaces, *tied, "sh", "-c", _MOUNT, "sh", str(image), str(mount))
        return run(argv, environ=environ, timeout_s=20)


class _Timex(ctypes.Structure):
    _fields_ = [
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 256),
    ]


def clock_state() -> ClockState:
    """This machine's clock; nothing is asked of the network."""
    timex = _Timex()
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    before = time.time() - time.monotonic()
    time.sleep(0.03)
    slip = time.time() - time.monotonic() - before
    known = None if state < 0 else not timex.status & _STA_UNSYNC
    return ClockState(known, timex.maxerror / 1e6, slip)


def clock_offset_s(folder: Path) -> float | None:
    """By how much the time of a new file in ``folder`` is ahead of this machine's clock, seconds."""
    try:
        before = time.time()
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
            file.flush()
            seen = os.fstat(file.fileno()).st_mtime
        after = time.time()
    except OSError:
        return None
    # The kernel stamps files by a clock that may stand still for 10 ms.
    return 0.0 if before - 0.02 <= seen <= after + 0.02 else seen - (before + after) / 2
