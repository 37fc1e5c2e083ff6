"""The address on which a rank listens."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path

from fairlead.base.errors import fail
from fairlead.base.interfaces import ipv4


def address(interfaces: tuple[str, ...]) -> str:
    """The numeric IPv4 address of the first interface that has one.

    Args:
        interfaces: names, or patterns such as ``hsn*``; empty for that of the default route.
    Raises:
        FairleadError: none has an address.
    """
    present = [name for _, name in socket.if_nameindex()]
    wanted = interfaces or _default_route()
    for pattern in wanted:
        for name in present:
            if Path(name).match(pattern):
                with suppress(OSError):
                    return ipv4(name)
    raise fail(
        "bridge-interface", host=socket.gethostname(), wanted=", ".join(wanted) or "a default route",
        present=", ".join(present),
    )  # fmt: skip


def _default_route() -> tuple[str, ...]:
    for line in Path("/proc/net/route").read_text("utf-8").splitlines()[1:]:
        name, destination, *_ = line.split()
        if destination == "00000000":
            return (name,)
    return ()
