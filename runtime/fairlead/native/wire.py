"""How a process that drives a net plugin of NCCL is started; ranks start it too.

``wire.c`` has the rest. Its process is one of its own, since a plugin may end it or never return.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

# Without the interpreter's end, at which a plugin's own destructors could hang.
_DRIVER = """
import ctypes, os, sys
library, plugin, version, device, folder, rank, size, count, window, wait, seed = sys.argv[1:]
os._exit(ctypes.CDLL(library).fairlead_wire(
    os.fsencode(plugin), int(version), int(device), os.fsencode(folder), int(rank), ctypes.c_long(int(size)),
    ctypes.c_long(int(count)), int(window), ctypes.c_double(float(wait)), ctypes.c_ulong(int(seed))))
"""


@dataclass(frozen=True)
class Settings:
    """What is moved, and how long it may take.

    Attributes:
        size: bytes of a message.
        count: messages in either direction; 0 only looks at the plugin and its devices, in one process.
        window: messages in flight, at most 32.
        wait_s: how long nothing may arrive; ``limit_s``: how long all of it may take.
        interface: version to use; 0 for the newest that the plugin exports.
        device: number of the network device.
    """

    size: int = 1 << 20
    count: int = 64
    window: int = 8
    wait_s: float = 10.0
    limit_s: float = 60.0
    interface: int = 0
    device: int = 0


@dataclass(frozen=True)
class Drive:
    """One of the two processes before it is started.

    Attributes:
        library: ``wire.so``.
        folder: that both see; this one writes ``events.RANK`` there.
        rank: 0 or 1.
        seed: of the pattern; both have the same.
    """

    library: str
    plugin: str
    settings: Settings
    folder: str
    rank: int
    seed: int

    @property
    def words(self) -> list[str]:
        """The words that start it."""
        s = self.settings
        values = (
            self.library, self.plugin, s.interface, s.device, self.folder, self.rank, s.size, s.count, s.window,
            s.wait_s, self.seed,
        )  # fmt: skip
        return [sys.executable, "-I", "-S", "-c", _DRIVER, *map(str, values)]

    @property
    def events(self) -> str:
        """The file with what happens, a JSON object a line."""
        return f"{self.folder}/events.{self.rank}"
