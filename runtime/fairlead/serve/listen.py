"""Where the server listens: loopback, a Unix socket, or an address with TLS."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from pathlib import Path

from fairlead.base.errors import fail, os_error_as

_PLACE = re.compile(r"(?:\[(?P<six>[^\]]+)\]|(?P<host>[^:]+)):(?P<port>\d{1,5})")


def bound(place: str, tls: bool) -> tuple[socket.socket, str]:
    """A listening socket and its address.

    Args:
        place: ``HOST:PORT``, ``[IPV6]:PORT`` or ``unix:PATH``; port 0 takes a free one.
    Raises:
        FairleadError: exit code 2; the address is wrong or in use, or others on the network would read what goes over it.
    """
    if place.startswith("unix:"):
        return _unix(Path(place.removeprefix("unix:")).absolute())
    match = _PLACE.fullmatch(place)
    if match is None or int(match["port"]) > 65535:
        raise fail("serve-address", place=place)
    host, port = match["six"] or match["host"], int(match["port"])
    with os_error_as("serve-listen", place=place):
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        if not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback and not tls:
            raise fail("serve-plain", place=place)
        listener = socket.create_server(address[:2], family=family)
    scheme = "https" if tls else "http"
    shown = f"[{host}]" if match["six"] else host
    return listener, f"{scheme}://{shown}:{listener.getsockname()[1]}"


def _unix(path: Path) -> tuple[socket.socket, str]:
    listener = socket.socket(socket.AF_UNIX)
    with os_error_as("serve-listen", place=f"unix:{path}"):
        if path.is_socket():
            with socket.socket(socket.AF_UNIX) as probe:
                try:
                    probe.connect(str(path))
                except ConnectionRefusedError:
                    path.unlink()  # a killed server left it
        mask = os.umask(0o177)  # only its owner may connect
        try:
            listener.bind(str(path))
        finally:
            os.umask(mask)
        listener.listen(64)
    return listener, f"unix:{path}"
