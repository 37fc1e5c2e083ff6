"""What a session is given by ``fairlead bridge serve``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fairlead.base.paths import atomic_write
from fairlead.bridge.wire import Secret

# Files in a session's folder.
TOKEN, CERTIFICATE, KEY = "token", "certificate.pem", "key.pem"
SERVER = "server.json"  # by `fairlead bridge serve`
RANKS = "ranks.json"  # by rank 0, once all ranks listen
ENDPOINTS = "endpoints.json"  # the same, once the launch is proved
OPERATIONS = "operations.jsonl"  # what clients have had done, a line each; by rank 0
ENDED = "ended.txt"  # why the session is over
# What its ranks import, with the names of Debian's packages.
NEEDED = {"numpy": "python3-numpy", "pyarrow": "python3-pyarrow", "mpi4py": "python3-mpi4py"}


def write_private(path: Path, text: str) -> None:
    """Writes a file of a session, whole or not at all, that only the user can read."""
    with atomic_write(path, "w", 0o600) as stream:
        stream.write(text)


@dataclass(frozen=True)
class Settings:
    """What ``fairlead bridge serve`` gives the ranks, by a file that only the user can read.

    Attributes:
        folder: of the session; every rank sees it.
        interfaces: network interfaces to listen on, the first that exists; empty for the default route's.
        loopback: listen on this machine only.
        memory: share of a node's free memory that the matrices of its ranks may take.
        keep_s: how long a client's matrices outlive it.
        stuck_s: how long the other ranks of a failed run may take to leave it.
    """

    folder: str
    name: str
    interfaces: tuple[str, ...] = ()
    loopback: bool = True
    tls: bool = False
    memory: float = 0.6
    keep_s: float = 600.0
    stuck_s: float = 30.0

    @property
    def secret(self) -> Secret:
        folder = Path(self.folder)
        certificate = (folder / CERTIFICATE).read_text("utf-8") if self.tls else ""
        return Secret((folder / TOKEN).read_text("utf-8").strip(), certificate)
