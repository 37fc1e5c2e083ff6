"""Who connects to a rank: accepted, authenticated, and handed to what serves its role, each in a thread."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

from fairlead.base.errors import FairleadError
from fairlead.bridge.errors import described
from fairlead.bridge.wire import Connection, Listener, WireError

# Serves a connection until it ends; gets the first object that was sent.
Role = Callable[[Connection, dict[str, Any]], None]
_UNKNOWN = 64  # connections at a time that have not proved that they know the token


class Door:
    """Accepts connections.

    Args:
        roles: by their names.
        refused: called with the reason for each connection that was turned away.
    """

    def __init__(
        self, listener: Listener, roles: Mapping[str, Role], refused: Callable[[str], None]
    ):
        self._listener, self._roles, self._refused = listener, roles, refused
        self._unknown = threading.BoundedSemaphore(_UNKNOWN)

    def start(self) -> None:
        for sock in self._listener.sockets():
            threading.Thread(target=self._accept, args=(sock,), name="door", daemon=True).start()

    def _accept(self, sock: socket.socket) -> None:
        while True:
            try:
                peer, _ = sock.accept()
            except OSError:  # closed
                return
            if not self._unknown.acquire(blocking=False):
                peer.close()
                continue
            threading.Thread(target=self._serve, args=(peer,), name="served", daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        connection = None
        try:
            try:
                connection, first = self._listener.opened(sock)
            finally:
                self._unknown.release()
            self._answer(connection, first)
        except (WireError, OSError) as exc:
            self._refused(str(exc))
        finally:
            if connection:
                connection.close()
            else:
                sock.close()

    def _answer(self, connection: Connection, first: dict[str, Any]) -> None:
        role = self._roles.get(str(first.get("role")))
        try:
            if role is None:
                raise WireError(
                    "bridge-garbled", who=connection.who, reason=f"role {first.get('role')}"
                )
            role(connection, first)
        except (FairleadError, WireError) as exc:
            connection.last_word(**described(exc))
