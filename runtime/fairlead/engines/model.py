"""A container engine's declaration, and the values that it works on.

Each engine is a module with a :class:`Driver`; :mod:`fairlead.engines.registry` finds them. Launchers, plans
and proofs know no engine by name.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from fairlead.base.system import View


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


@dataclass(frozen=True)
class Config:
    """An engine's configuration file, and those of its settings that decide how containers run."""

    path: str
    settings: Mapping[str, str]


class Driver:
    """A kind of container engine: how it is recognised, how it behaves here, and its command line.

    Subclass it in a module of this package, or of another distribution with an entry point of the group
    ``fairlead.engines``; the module's ``ENGINE`` is an instance. Only ``kind``, ``title``, ``programs``,
    :meth:`detect` and :meth:`words` have no default.

    Attributes:
        kind: its name in site profiles and for ``--engine``.
        title: its product name.
        programs: of which the first on PATH is it; none for one that is a part of ``srun``.
        driven: fairlead can run with it; else it is only recognised.
        version_arguments: print its version.
        processes: names of its processes, regular expressions; what a dying launch may leave is one of them.
        shares_userns: ranks of a node share a user namespace, or have none.
        binds_files: it can show a single file of the host over one of the image.
        userns_options: options with which each rank gets a user namespace of its own.
        parting_options: options that keep the ranks of a node from working together, and the reason.
        inside_variables: set in its containers.
        inside_files: present in its containers.
        srun_option: what its Slurm plugin adds to ``srun --help``, and that plugin's name; or None.
    """

    kind: str
    title: str
    programs: tuple[str, ...] = ()
    driven: bool = True
    version_arguments: tuple[str, ...] = ("--version",)
    processes: tuple[str, ...] = ()
    shares_userns: bool = False
    binds_files: bool = True
    userns_options: tuple[str, ...] = ()
    parting_options: Mapping[str, str] = MappingProxyType({})
    inside_variables: tuple[str, ...] = ()
    inside_files: tuple[str, ...] = ()
    srun_option: tuple[str, str] | None = None

    def detect(self, environ: Mapping[str, str]) -> Engine | None:
        """The engine as it behaves here; None where there is none. Starts nothing that can hang."""
        return None

    def words(self, engine: Engine, call: Call) -> Words:
        """What starts ``call``; a pure function.

        Raises:
            FairleadError: exit code 121; the engine cannot open the image, or has no words for a path.
        """
        raise NotImplementedError

    def locate(self, view: View) -> str:
        """The path of its program; empty where there is none."""
        return next(filter(None, map(view.which, self.programs)), "")

    def version_command(self, view: View, path: str) -> tuple[str, ...]:
        """What prints its version."""
        return (path, *self.version_arguments)

    def setuid_files(self, view: View, real: str) -> tuple[str, ...] | None:
        """Programs of which one, if setuid root, makes it start as root; None where it never does.

        Args:
            real: its program, links resolved.
        """
        return None

    def configuration(self, view: View, real: str) -> Config | None:
        """Its configuration; None where none is found."""
        return None

    def srun_settings(self, view: View) -> dict[str, str]:
        """Settings of an engine that is seen by its ``srun_option`` alone."""
        return {}


def prefix_of(real: str) -> str:
    """The installation prefix of a program in ``bin``."""
    return real.rsplit("/", 2)[0] if real.count("/") > 1 else ""
