"""What fairlead needs of a container engine, whichever it is.

Each engine is a module with a :class:`Driver` in it; :mod:`fairlead.engines.registry` lists them. A driver
knows two things: how its engine behaves for this user on this machine, and the words that start one
process in a container. Launchers, plans and proofs know no engine by name.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


class Takes(enum.StrEnum):
    """The form in which an engine opens an image."""

    FILE = "file"  # a SIF or a squashfs as it is, or a folder
    SQUASHFS = "squashfs"  # a bare squashfs, or a folder
    FOLDER = "folder"  # an unpacked tree
    NAME = "name"  # something it has in a store of its own


@dataclass(frozen=True)
class Engine:
    """A container engine as it behaves for this user on this machine.

    Attributes:
        userns_per_rank: each rank gets a user namespace of its own.
        options: what it needs here whenever it starts a container.
        reasons: ``(option, why)`` for ``explain``.
        binds_files: it can show a single file of the host over one of the image.
        takes: the form in which it opens images.
        makes_places: it makes the place of a bind that the image does not have.
        folder: where files lie that it is told of by their names.
        config: the file in which an administrator has set what follows.
        forbids_binds: the setting by which no path of the node is shown in a container; the engine
            warns, and starts it without.
        hides: folders that ranks of a node share and its containers do not see, each with its setting.
    """

    kind: str
    path: str
    userns_per_rank: bool
    options: tuple[str, ...]
    reasons: tuple[tuple[str, str], ...]
    binds_files: bool = True
    version: str = ""
    takes: Takes = Takes.FILE
    makes_places: bool = True
    folder: str = ""
    config: str = ""
    forbids_binds: str = ""
    hides: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Call:
    """One process in a container.

    Attributes:
        image: what the engine opens, in the form that it takes.
        binds: ``(source, target, read only)``.
        env: variables for the container.
        literal: more of them, in which no shell must look for ``$`` and the like.
        image_env: what the image itself sets, for an engine that does not see it in the form it takes.
        extra: the user's own options, passed last so that they win.
        workdir: folder inside the container to start in; the engine's default when empty.
        devices: device nodes of the host, for an engine that does not show them all.
    """

    image: str
    command: tuple[str, ...]
    binds: tuple[tuple[str, str, bool], ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    literal: Mapping[str, str] = field(default_factory=dict)
    image_env: Mapping[str, str] = field(default_factory=dict)
    extra: tuple[str, ...] = ()
    workdir: str = ""
    devices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Words:
    """What starts it: words, and the variables around them.

    Attributes:
        launcher: words for the launcher, of an engine that is a part of it; ``argv`` is then in the
            container already.
        files: texts by path, which must be there before.
    """

    argv: tuple[str, ...]
    environ: Mapping[str, str]
    launcher: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)


class Driver(Protocol):
    """An engine's module."""

    kind: str

    def detect(self, environ: Mapping[str, str]) -> Engine | None:
        """The engine as it behaves here; None where there is none. Starts nothing that can hang."""

    def words(self, engine: Engine, call: Call) -> Words:
        """What starts ``call``; a pure function."""
