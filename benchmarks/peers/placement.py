"""Where ranks run and where they listen: cores, ports, addresses."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from fairlead.base.errors import FairleadError, Finding, Severity

_PROXIES = ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY")


def share(cores: Sequence[int], place: int, of: int) -> tuple[int, ...]:
    """The cores of one of ``of`` processes that have ``cores`` together; where there are too few, one in turn.

    >>> share([0, 1, 2, 3, 4], 1, 2), share([0, 1], 3, 4)
    ((2, 3), (1,))
    """
    each = len(cores) // of
    if each == 0:
        return (cores[place % len(cores)],)
    return tuple(cores[place * each : (place + 1) * each])


def place_of(rank: int, cores: Sequence[tuple[str, tuple[int, ...]]]) -> tuple[int, ...]:
    """The cores for ``rank``; ``cores`` has each rank's machine and the cores that it may use.

    Ranks that the launcher has bound to cores of their own keep them.

    >>> place_of(1, [("a", (0, 1)), ("a", (0, 1)), ("b", (0, 1))])
    (1,)
    >>> place_of(2, [("a", (0, 1)), ("a", (0, 1)), ("b", (0, 1))])
    (0, 1)
    """
    sharing = [other for other, given in enumerate(cores) if given == cores[rank]]
    return share(cores[rank][1], sharing.index(rank), len(sharing))


def holders(hosts: Sequence[str], servers: int) -> list[int]:
    """The rank that holds each server: one on every host before there is a second on any.

    >>> holders(["a", "a", "b", "b"], 4), holders(["a", "a"], 1)
    ([0, 2, 1, 3], [0])
    """
    ranks: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        ranks.setdefault(host, []).append(rank)
    order = sorted(range(len(hosts)), key=lambda r: (ranks[hosts[r]].index(r), r))
    return [order[number % len(order)] for number in range(servers)]


def pin(cores: Sequence[int]) -> None:
    """Every thread of this process to these cores; those that are made later stay there too."""
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has ended
            os.sched_setaffinity(int(thread.name), cores)


def free_port() -> int:
    """A port without a listener now, on any interface."""
    with socket.socket() as door:
        door.bind(("", 0))
        port: int = door.getsockname()[1]
        return port


def names(hosts: Sequence[str]) -> list[str]:
    """By which name the ranks reach each other's hosts.

    >>> names(["node1", "node2"]), names(["laptop", "laptop"])
    (['node1', 'node2'], ['127.0.0.1', '127.0.0.1'])
    """
    return list(hosts) if len(set(hosts)) > 1 else ["127.0.0.1"] * len(hosts)


def require_names(hosts: Sequence[str]) -> None:
    """Checks that this host can resolve the others' names: gRPC would wait for them until a time limit ends it.

    Raises:
        FairleadError: a name does not resolve.
    """
    for name in dict.fromkeys(names(hosts)):
        try:
            socket.getaddrinfo(name, None)
        except OSError as exc:
            raise FairleadError(
                Finding(
                    Severity.ERROR,
                    f"host name `{name}` does not resolve",
                    os.uname().nodename,
                    f"{exc.strerror or exc}; gRPC uses names and TCP",
                    f"getent hosts {name}; add it to DNS, or bind a hosts file: -B FILE:/etc/hosts:ro",
                    "bench-name",
                )
            ) from None


def without_proxies() -> None:
    """gRPC would connect to the next node through a proxy that the environment names."""
    for name in _PROXIES:
        os.environ.pop(name, None)
