"""What of a profile's patterns there is on a machine.

A pattern is a path with ``*``, ``?`` or ``[…]``, and may begin with a variable: ``$CRAY_MPICH_ROOTDIR/gtl/lib``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fairlead.site.model import Site

_VARIABLE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")


def matches(
    patterns: Iterable[str], environ: Mapping[str, str] = os.environ, root: Path = Path("/")
) -> list[Path]:
    """The paths that fit, pattern by pattern; of one pattern's, the highest version first.

    A pattern whose variable is not set fits nothing.
    """
    matched: dict[Path, None] = {}
    for pattern in patterns:
        if any(name not in environ for name in _VARIABLE.findall(pattern)):
            continue
        full = _VARIABLE.sub(lambda match: environ[match[1]], pattern)
        try:
            paths = list(root.glob(full.lstrip("/")))
        except (OSError, ValueError):  # a file server that is away, an odd value of the variable
            continue
        for path in sorted(paths, key=_by_version, reverse=True):
            matched[path] = None
    return list(matched)


def _by_version(path: Path) -> tuple[tuple[int, int, str], ...]:
    """Numbers in a path as numbers: 8.1.29 comes after 8.1.9."""
    parts = re.findall(r"\d+|\D+", str(path))
    return tuple((1, int(p), "") if p.isdigit() else (0, 0, p) for p in parts)


def expanded(pattern: str, environ: Mapping[str, str]) -> str:
    """A pattern of paths with its variables expanded; an unset one becomes ``/$NAME``, which matches nothing."""
    return _VARIABLE.sub(lambda m: environ.get(m[1]) or f"/${m[1]}", pattern)


def unset(pattern: str, environ: Mapping[str, str]) -> str:
    """The first unset variable of a pattern; empty if all are set."""
    return next((n for n in _VARIABLE.findall(pattern) if not environ.get(n)), "")


@dataclass(frozen=True)
class Here:
    """What of a profile's paths is on this machine.

    Attributes:
        binds, devices: that are there.
        absent: patterns of binds that fit nothing.
        plugin: folders of the site's dl_comm, the newest of a pattern first.
        nccl_folders, nccl_libraries, nccl_files: what of NCCL's plugin is there, in the order of the patterns.
    """

    binds: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    plugin: tuple[str, ...] = ()
    nccl_folders: tuple[str, ...] = ()
    nccl_libraries: tuple[str, ...] = ()
    nccl_files: tuple[str, ...] = ()


NOTHING = Here()


def look(site: Site, environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> Here:
    """Looks; a file system that is away counts as nothing there."""

    def existing(patterns: Iterable[str]) -> tuple[str, ...]:
        return tuple(f"/{p.relative_to(root)}" for p in matches(patterns, environ, root))

    return Here(
        binds=existing(site.binds),
        devices=existing(site.devices),
        absent=tuple(p for p in site.binds if not matches((p,), environ, root)),
        plugin=existing(site.comm.plugin),
        nccl_folders=existing(site.nccl.folders),
        nccl_libraries=existing(site.nccl.libraries),
        nccl_files=existing(site.nccl.files),
    )
