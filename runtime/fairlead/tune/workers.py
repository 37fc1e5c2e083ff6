"""Who searches: every tuner of a study has a file that it touches while it lives, so that others see when it has died."""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path

from fairlead.base import bounded_json
from fairlead.base.paths import atomic_write
from fairlead.base.proc_stat import began

_TOUCH_S = 10.0
_DEATH_S = 90.0  # without a touch, by the clock of the file system
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Worker:
    """This process as a tuner of a study.

    Attributes:
        name: unique among the study's tuners.
    """

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self.name = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(3).hex()}"
        self._folder, self._file = folder, folder / f"{self.name}.json"
        self._touched = time.monotonic()
        with atomic_write(self._file, "w") as stream:
            json.dump({"boot": _boot(), "pid": os.getpid(), "started": began(os.getpid())}, stream)

    def touch(self) -> None:
        """Shows that this process lives, if it is time to."""
        if time.monotonic() - self._touched > _TOUCH_S:
            self._touched = time.monotonic()
            with suppress(OSError):
                self._file.touch()

    def end(self) -> None:
        """Takes the file back."""
        with suppress(OSError):
            self._file.unlink(missing_ok=True)

    def lives(self, name: str) -> bool:
        """Whether another tuner still runs: by its process on this machine, by its touches on another."""
        if name == self.name:
            return True
        file = self._folder / f"{name}.json"
        try:
            known = bounded_json.loads(file.read_bytes())
            if known["boot"] == _boot():
                return bool(began(int(known["pid"])) == known["started"])
            touched = file.stat().st_mtime
            self._file.touch()  # now, by the clock that has dated the other file
            return self._file.stat().st_mtime - touched < _DEATH_S
        except (OSError, ValueError, LookupError, TypeError):
            return False

    def others(self) -> list[str]:
        """Tuners of this study that run, other than this one."""
        names = (path.stem for path in self._folder.glob("*.json"))
        return sorted(name for name in names if name != self.name and self.lives(name))


def _boot() -> str:
    with suppress(OSError):
        return _BOOT.read_text("utf-8").strip()
    return socket.gethostname()
