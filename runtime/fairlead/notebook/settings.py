"""The files of a session, which only the user can read, and what they hold; the standard library only."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fairlead.base import bounded_json

# Files of a session.
SETTINGS, SERVER, ENDED = "settings.json", "server.json", "ended.txt"
KERNEL = "kernel.json"  # the kernel's connection file
STATE = "kernel-state.json"  # by the kernel: its process, since when it idles
JOURNAL = "output.jsonl"  # what cells have printed
RUN = "kernel-run.json"  # which run of the kernel this is
SAVE, SAVED_AT = "save-now", "saved-at.json"  # asks the kernel to save; when it has done so
ORDERS = "orders"  # a folder; what the kernel or a server wants of the session
NAMES = "save.json"  # what `%ranks save` was given
SAVED = "saved"  # a folder; variables that outlive the session
LET_GO = "let-go"  # also of a world: at SIGTERM, nothing is left to save
LAB = "lab.json"  # where JupyterLab listens
# Files of a world, the folder world-N of a session.
WORLD = "world.json"
CLIENT, ENGINE = "client.json", "engine.json"  # ipyparallel's connection files
PROOF, OUTCOME = "proof.json", "outcome.json"
TRACE = "timeline.json"  # ranks record their timeline in a folder next to it
VARIABLES = "variables"  # a folder; what ranks take into the next world
START_S = 600.0  # for all ranks of a world to be there


@dataclass(frozen=True)
class Settings:
    """What a session's processes in the image are given.

    Attributes:
        folder: of the session; every node sees it.
        sockets: a folder of the kernel's node with a short path, for Unix sockets.
        address: numeric IPv4 address on which controller and kernel listen for ranks.
        key: what ranks prove themselves with.
        idle_s: the session ends when no cell has run for so long; 0 for never.
        timeline: ranks record one.
        grace_s: how long an interrupted rank may take before it is replaced.
    """

    folder: str
    sockets: str
    ranks: int
    image: str
    key: str
    address: str = "127.0.0.1"
    idle_s: float = 0.0
    grace_s: float = 3.0
    timeline: bool = False

    def world(self, number: int) -> Path:
        """The folder of a world."""
        return Path(self.folder, f"world-{number}")


def read_settings(folder: Path) -> Settings:
    """What a session was given."""
    return Settings(**bounded_json.loads((folder / SETTINGS).read_text("utf-8")))


def write_settings(settings: Settings) -> None:
    """Writes them, for the user only."""
    write_private(Path(settings.folder, SETTINGS), json.dumps(asdict(settings)))


def write_private(path: Path, data: str | bytes) -> None:
    """Writes a file, whole or not at all, that only the user can read."""
    fd, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as stream:
            stream.write(data.encode("utf-8") if isinstance(data, str) else data)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def saved_to(session: Path) -> Path:
    """Where a session is asked to save variables."""
    return Path(read_json(session / NAMES).get("folder") or session / SAVED)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; an empty one where there is no such file."""
    try:
        document: dict[str, Any] = bounded_json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return document


def log_tail(path: Path) -> str:
    """The end of a log, for a message; empty where there is no log."""
    return path.read_text("utf-8", errors="replace")[-2000:].strip() if path.exists() else ""


def order(folder: Path, **wanted: Any) -> None:
    """Leaves an order for the session in ``folder``."""
    name = os.urandom(8).hex()
    write_private(folder / ORDERS / f"{name}.json", json.dumps(wanted))
