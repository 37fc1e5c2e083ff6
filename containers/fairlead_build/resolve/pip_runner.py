"""pip with the environment markers of the image: ``python3 -P pip_runner.py REQUEST ARGUMENT…``.

pip's options describe another Python for the choice of wheels, but conditions such as ``python_version < "3.11"`` it
evaluates for the Python that runs it. REQUEST is a JSON object of ``markers``, those that differ in the image (PEP 508),
and of the pace below which a sender is left: pip's own time limit is one for each byte.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from weakref import WeakKeyDictionary


def keep_up(least: float, window_s: float) -> None:
    """Ends this process when fewer than ``least`` bytes a second come from a connection for ``window_s`` seconds of waiting."""
    readinto = socket.SocketIO.readinto
    counts = WeakKeyDictionary[socket.SocketIO, tuple[float, int]]()

    def counted(self: socket.SocketIO, buffer: bytearray) -> int | None:
        begun = time.monotonic()
        size = readinto(self, buffer)
        waited, got = counts.get(self, (0.0, 0))
        waited, got = waited + time.monotonic() - begun, got + (size or 0)
        if waited >= window_s:
            # After a long wait for an answer, much may come at once.
            if 0 < (size or 0) < 5 * least and got < least * waited:
                host = ":".join(map(str, self._sock.getpeername()[:2]))  # type: ignore[attr-defined]
                print(f"ERROR: too slow: {host} sent {got} bytes in {waited:.1f} s", flush=True)
                os._exit(1)  # pip would try again
            waited, got = 0.0, 0
        counts[self] = waited, got
        return size

    socket.SocketIO.readinto = counted  # type: ignore[method-assign, assignment]


def main() -> None:
    """Runs pip; ends the process with its exit code, or with a sentence where this pip cannot be made to do so."""
    import pip
    from pip._internal.cli.main import main as run
    from pip._vendor.packaging import markers

    request = json.loads(sys.argv[1])
    keep_up(request["least"], request["window_s"])
    ours: dict[str, str] = request["markers"]
    own: Callable[[], dict[str, str]] | None = getattr(markers, "default_environment", None)
    if own is None:
        sys.exit(
            f"ERROR: pip {pip.__version__} evaluates conditions in a way that fairlead does not know"
        )
    setattr(markers, "default_environment", lambda: own() | ours)  # noqa: B010
    sys.argv[:] = ["pip", *sys.argv[2:]]
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
