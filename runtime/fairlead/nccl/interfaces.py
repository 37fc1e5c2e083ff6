"""Which versions of its plugins' interfaces each release of NCCL knows.

A plugin exports one ``ncclNetPlugin_vN`` for each version that it serves; NCCL takes the newest that it knows. RCCL
keeps NCCL's symbols and its version numbers. Sources: the tags of NVIDIA/nccl, v2.8.4-1 to v2.30.7-1, ``src/``; for
2.32, what the library of its wheel asks for.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.elf.facts import NcclLibrary, NetPlugin
from fairlead.elf.reader import version_key

Range = tuple[int, int]


@dataclass(frozen=True)
class Row:
    """What is true from a release on, up to the next row.

    Attributes:
        since: the first release.
        net, tuner, profiler, gin: oldest and newest version of the interface; None: there is no such interface.
    """

    since: str
    net: Range
    tuner: Range | None = None
    profiler: Range | None = None
    gin: Range | None = None


ROWS = (
    Row("2.8.0", (4, 4)),
    Row("2.12.0", (4, 5)),
    Row("2.13.0", (4, 6)),
    Row("2.19.0", (5, 7), tuner=(1, 1)),
    Row("2.20.0", (5, 8), tuner=(1, 1)),
    Row("2.21.0", (5, 8), tuner=(2, 2)),
    Row("2.22.0", (5, 8), tuner=(2, 3)),
    Row("2.23.0", (5, 8), tuner=(2, 3), profiler=(1, 1)),
    Row("2.24.0", (5, 9), tuner=(2, 4), profiler=(1, 2)),
    Row("2.26.0", (6, 10), tuner=(2, 4), profiler=(1, 3)),
    Row("2.27.0", (6, 10), tuner=(2, 4), profiler=(1, 4)),
    Row("2.28.0", (6, 11), tuner=(2, 5), profiler=(1, 5)),
    Row("2.28.7", (6, 11), tuner=(2, 5), profiler=(1, 5), gin=(11, 11)),
    Row("2.29.0", (6, 11), tuner=(2, 5), profiler=(1, 6), gin=(11, 11)),
    Row("2.29.7", (6, 11), tuner=(2, 5), profiler=(1, 6), gin=(11, 12)),
    Row("2.30.0", (6, 12), tuner=(2, 6), profiler=(1, 6), gin=(11, 13)),
    Row("2.30.7", (6, 12), tuner=(2, 6), profiler=(1, 6), gin=(13, 14)),
    Row("2.32.0", (6, 12), tuner=(2, 6), profiler=(1, 7), gin=(13, 14)),
)
NEWEST = "2.32"  # the last release that the table is known to be true of


def row(version: str) -> Row | None:
    """The row of a release, ``2.27.5``; None for one that is older than the table, or unknown.

    >>> row("2.21.5").net
    (5, 8)
    """
    fitting = [row for row in ROWS if version_key(row.since) <= version_key(version)]
    return fitting[-1] if fitting and version else None


def is_newer(library: NcclLibrary) -> bool:
    """Whether a release is newer than the table, so that what it has dropped is not known."""
    return not library.asks and version_key(library.version)[:2] > version_key(NEWEST)


def net_versions(library: NcclLibrary) -> tuple[int, ...]:
    """The versions of the net interface that a library knows, ascending; empty if unknown.

    Its file has the symbols that it asks for; the table is for those of which it is not known.
    """
    if asked := library.asks.get("net"):
        return asked
    interface = row(library.version)
    return _every(interface.net) if interface else ()


def tuner_versions(library: NcclLibrary) -> tuple[int, ...]:
    """The versions of the tuner interface that a library knows, ascending; empty if it has none, or unknown."""
    if asked := library.asks.get("tuner"):
        return asked
    interface = row(library.version)
    return _every(interface.tuner) if interface and interface.tuner and not library.asks else ()


def _every(versions: Range) -> tuple[int, ...]:
    return tuple(range(versions[0], versions[1] + 1))


def common(library: NcclLibrary, plugin: NetPlugin) -> int:
    """The newest version of the net interface that both know; 0 if there is none, or the library's are unknown."""
    both = set(net_versions(library)).intersection(plugin.interfaces.get("net", ()))
    return max(both, default=0)


def common_tuner(library: NcclLibrary, plugin: NetPlugin) -> int:
    """The newest version of the tuner interface that both know; 0 if there is none."""
    both = set(tuner_versions(library)).intersection(plugin.interfaces.get("tuner", ()))
    return max(both, default=0)


def may_tune(library: NcclLibrary, plugin: NetPlugin) -> bool:
    """Whether a tuner serves a library; for one of unknown version it may, and does no harm if not."""
    return bool(common_tuner(library, plugin)) or not (library.version or library.asks)
