"""Runs a command, and ends it reliably when asked to.

mmdebstrap ignores a SIGTERM that arrives while one of its children runs, and a process that is being killed can
send only one. So this script runs in between (``tree/debian.py``) and sends it repeatedly to the whole group.
It imports the standard library only.
"""

import os
import signal
import subprocess
import sys
import time

PATIENCE_S = 20


def main() -> None:
    process = subprocess.Popen(sys.argv[1:])

    def end(number: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        deadline = time.monotonic() + PATIENCE_S
        while process.poll() is None and time.monotonic() < deadline:
            os.killpg(0, signal.SIGTERM)
            time.sleep(1)
        os.killpg(0, signal.SIGKILL)

    signal.signal(signal.SIGTERM, end)
    code = process.wait()
    sys.exit(code if code >= 0 else 128 - code)


main()
