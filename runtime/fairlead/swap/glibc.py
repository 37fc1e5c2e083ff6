"""The distance between the C libraries of host and image: whether the host's libraries run on the image's.

Decided by what the host's libraries need, not by versions of distributions. Sources: glibc's ld.so(8),
"--library-path"; Sarus' glibc hook, which acts on versions instead.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from fairlead.elf.facts import Elf, ImageFacts
from fairlead.elf.mpi_symbols import GLIBC_PIECES, RUNTIME_PIECES
from fairlead.elf.reader import version_key
from fairlead.engines.model import Engine
from fairlead.mpi.host import HostMpi, needs

GLIBC_FOLDER = "glibc"  # below the staged folder; never on a search path of the container


class GlibcWay(enum.StrEnum):
    """How the host's libraries get the C library that they need."""

    IMAGE = "image"  # the image's glibc is new enough
    BIND = "bind"  # bind each file of the host's glibc over the image's
    LOADER = "loader"  # the host's loader starts the program, but not its children
    NONE = "none"  # not possible


@dataclass(frozen=True)
class Glibc:
    """The way, the required version, and the file that requires it.

    Attributes:
        pieces: files of the host's glibc to use.
        lacking: files that the host's libraries need and the image has no counterpart for.
        left: files of the image's glibc that remain, next to a newer libc.
    """

    way: GlibcWay
    need: str
    by: str
    pieces: tuple[Elf, ...] = ()
    lacking: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


def choose_glibc(host: HostMpi, facts: ImageFacts, engine: Engine) -> Glibc:
    """Decides by what the host's libraries need, not by which glibc the host has."""
    parts = [e for e in host.parts if e.soname not in RUNTIME_PIECES]
    need, by = needs(tuple(parts))
    if not need or not facts.glibc or version_key(need) <= version_key(facts.glibc):
        return Glibc(GlibcWay.IMAGE, need, by)
    has_loader = any(e.soname.startswith("ld-linux") for e in host.glibc)
    enough = version_key(host_glibc(host)) >= version_key(need)
    if not enough or not has_loader or "libc.so.6" not in facts.glibc_files:
        return Glibc(GlibcWay.NONE, need, by)
    if not engine.binds_files:
        return Glibc(GlibcWay.LOADER, need, by, host.glibc)
    there = {e.soname for e in host.glibc}
    asked = {name for e in parts for name in e.needed if GLIBC_PIECES.match(name)}
    lacking = tuple(sorted(asked - set(facts.glibc_files)))
    pieces = tuple(e for e in host.glibc if e.soname in facts.glibc_files)
    left = tuple(sorted(set(facts.glibc_files) - there))
    way = GlibcWay.NONE if lacking else GlibcWay.BIND
    return Glibc(way, need, by, pieces, lacking, left)


def host_glibc(host: HostMpi) -> str:
    """The version of the host's C library; empty when it was not found."""
    return next((e.offers.get("GLIBC", "") for e in host.glibc if e.soname == "libc.so.6"), "")
