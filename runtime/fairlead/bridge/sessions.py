"""Sessions of this user: a folder each, which only the user can read."""

from __future__ import annotations

import json
import os
import socket
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead.base.errors import fail
from fairlead.base.paths import state_dir
from fairlead.bridge.settings import CERTIFICATE, ENDED, ENDPOINTS, SERVER, TOKEN
from fairlead.bridge.wire import Endpoint, Secret

VARIABLE = "FAIRLEAD_BRIDGE"  # a session's name or folder


@dataclass(frozen=True)
class ServerState:
    """A session as its folder shows it.

    Attributes:
        server: what ``fairlead bridge serve`` wrote: image, ranks, pid, host, job.
        endpoints: of the ranks; empty until all listen.
        ended: why it is over; empty while it is not.
    """

    folder: Path
    server: Mapping[str, Any]
    endpoints: tuple[Endpoint, ...]
    ended: str

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def secret(self) -> Secret:
        """
        Raises:
            FairleadError: it cannot be read.
        """
        certificate = self.folder / CERTIFICATE
        try:
            text = certificate.read_text("utf-8") if certificate.exists() else ""
            return Secret((self.folder / TOKEN).read_text("utf-8").strip(), text)
        except OSError as exc:
            raise fail("bridge-session-file", folder=self.folder, reason=exc.strerror) from None


def top(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of all sessions."""
    return state_dir(environ) / "bridge"


def every(environ: Mapping[str, str] = os.environ) -> list[ServerState]:
    """All sessions, the latest first."""
    folder = top(environ)
    folders = [f for f in folder.iterdir() if (f / SERVER).exists()] if folder.is_dir() else []
    folders.sort(key=lambda f: (f / SERVER).stat().st_mtime, reverse=True)
    return [read(f) for f in folders]


def read(folder: Path) -> ServerState:
    """
    Raises:
        FairleadError: there is none, it belongs to somebody else, or others can read it.
    """
    try:
        info = folder.stat()
        if info.st_uid != os.geteuid():
            raise fail("bridge-session-owner", folder=folder, owner=info.st_uid)
        if stat.S_IMODE(info.st_mode) & 0o077:
            raise fail("bridge-session-mode", folder=folder, mode=stat.S_IMODE(info.st_mode))
        server = json.loads((folder / SERVER).read_text("utf-8"))
        endpoints: list[dict[str, Any]] = []
        if (folder / ENDPOINTS).exists():
            endpoints = json.loads((folder / ENDPOINTS).read_text("utf-8"))["endpoints"]
        ended = (folder / ENDED).read_text("utf-8") if (folder / ENDED).exists() else _gone(server)
    except (OSError, ValueError, KeyError) as exc:
        raise fail(
            "bridge-session-file", folder=folder, reason=getattr(exc, "strerror", exc)
        ) from None
    made = tuple(Endpoint(**{**e, "address": tuple(e["address"])}) for e in endpoints)
    return ServerState(folder, server, made, ended)


def _gone(server: Mapping[str, Any]) -> str:
    """Why a session is over that could not say so itself; empty where it is not, or on another machine."""
    if server["host"] != socket.gethostname():
        return ""
    try:
        words = Path(f"/proc/{server['pid']}/cmdline").read_bytes().split(b"\0")
    except FileNotFoundError:
        words = []
    if b"bridge" in words:
        return ""
    return f"its `fairlead bridge serve` was killed (process {server['pid']} on {server['host']})"


def find(wanted: str | Path | None = None, environ: Mapping[str, str] = os.environ) -> ServerState:
    """A session that is there.

    Args:
        wanted: its name or folder; ``FAIRLEAD_BRIDGE`` by default, else the only one that has not ended.
    Raises:
        FairleadError: there is none, or several.
    """
    wanted = wanted or environ.get(VARIABLE)
    if wanted:
        is_path = isinstance(wanted, Path) or "/" in wanted
        folder = Path(wanted) if is_path else top(environ) / wanted
        if not folder.exists():
            names = ", ".join(f.name for f in every(environ) if not f.ended)
            raise fail("bridge-no-session", name=wanted, folder=folder, names=names or "none")
        return read(folder)
    live = [session for session in every(environ) if not session.ended]
    if not live:
        raise fail("bridge-no-sessions", folder=top(environ))
    if len(live) > 1:
        raise fail("bridge-several", names=", ".join(session.name for session in live))
    return live[0]
