"""This node as a rank finds it: the address to listen on, and the memory that is free."""

from __future__ import annotations

import fcntl
import socket
import struct
from contextlib import suppress
from pathlib import Path

from fairlead.base.errors import fail

_SIOCGIFADDR = 0x8915


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
                    return _of(name)
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


def _of(name: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        packed = struct.pack("256s", name.encode()[:15])
        return socket.inet_ntoa(fcntl.ioctl(sock, _SIOCGIFADDR, packed)[20:24])


def free_memory() -> int:
    """Bytes that programs on this node can still have, by the kernel and the control group."""
    free = 0
    for line in Path("/proc/meminfo").read_text("utf-8").splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    for limit, used in _control_group():
        free = min(free, max(limit - used, 0))
    return free


def _control_group() -> list[tuple[int, int]]:
    """Limits and use of memory of the groups that this process is in."""
    found = []
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text("utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                found.append((Path("/sys/fs/cgroup" + path), "memory.max", "memory.current"))
            elif "memory" in controllers.split(","):
                top = Path("/sys/fs/cgroup/memory" + path)
                found.append((top, "memory.limit_in_bytes", "memory.usage_in_bytes"))
    limits = []
    for folder, most, used in found:
        for place in (folder, *folder.parents):
            with suppress(OSError, ValueError):
                limits.append(
                    (int((place / most).read_text("utf-8")), int((place / used).read_text("utf-8")))
                )
    return limits
