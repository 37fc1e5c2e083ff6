"""Addresses of this node's network interfaces."""

from __future__ import annotations

import fcntl
import socket
import struct

_SIOCGIFADDR = 0x8915


def ipv4(name: str) -> str:
    """The numeric IPv4 address of an interface.

    Raises:
        OSError: it has none, or there is no such interface.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        request = struct.pack("256s", name.encode()[:15])
        return socket.inet_ntoa(fcntl.ioctl(link.fileno(), _SIOCGIFADDR, request)[20:24])
