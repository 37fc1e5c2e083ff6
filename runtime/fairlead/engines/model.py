"""A container engine's declaration, and the values that it works on.

Each engine is a module with a :class:`Driver`; :mod:`fairlead.engines.registry` finds them. Launchers, plans
and proofs name no engine.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from fairlead.base.system import View


class Takes(enum.StrEnum):
    """The form in which an engine opens an image."""

    FILE = "file"  # a SIF or squashfs file, or a folder
    SQUASHFS = "squashfs"  # a bare squashfs, or a folder
    FOLDER = "folder"  # an unpacked tree
    NAME = "name"  # an image in the engine's store


@dataclass(frozen=True)
class Engine:
    """A container engine as it behaves for this user on this machine.

    Attributes:
        userns_per_rank: each rank gets a separate user namespace.
        options: options that every container start needs on this machine.
        reasons: ``(option, why)`` for ``explain``.
        binds_files: it can bind a single file of the host over one of the image.
        takes: the form in which it opens images.
        makes_places: it creates mount points that the image lacks.
        folder: folder of the files that its options refer to by name.
        config: the configuration file with the settings below.
        forbids_binds: the setting that forbids binding host paths; the engine warns, and starts the
            container without them.
        hides: folders that ranks of a node share but its containers do not see, each with its setting.
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
        literal: further variables, whose values no shell may expand.
        image_env: variables that the image sets, for an engine that does not read them from the image.
        extra: the user's options, passed last so that they take precedence.
        workdir: initial folder in the container; empty: the engine's default.
        devices: device nodes of the host, for an engine that does not expose all of them.
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
    """The command line that starts a container, and its environment.

    Attributes:
        launcher: arguments for the launcher, if the engine is part of it; ``argv`` then already runs
            in the container.
        files: contents by path of files to write before the start.
    """

    argv: tuple[str, ...]
    environ: Mapping[str, str]
    launcher: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Config:
    """An engine's configuration file, with the settings that affect how containers run."""

    path: str
    settings: Mapping[str, str]


class Driver:
    """A kind of container engine: how to recognise it, how it behaves on this machine, and its command line.

    Subclass it in a module of this package, or of another distribution with an entry point of the group
    ``fairlead.engines``; the module's ``ENGINE`` is an instance. Only ``kind``, ``title``, ``programs``,
    :meth:`detect` and :meth:`words` have no default.

    Attributes:
        kind: its name in site profiles and for ``--engine``.
        title: its product name.
        programs: names of its program; the first on PATH is used. Empty for a part of ``srun``.
        driven: fairlead can run with it; otherwise fairlead only recognises it.
        version_arguments: arguments that print its version.
        processes: regular expressions of its process names, to find what a dying launch leaves behind.
        binds_files: it can bind a single file of the host over one of the image.
        userns_options: options that give each rank a separate user namespace.
        parting_options: options that isolate the ranks of a node from each other, with the reason.
        inside_variables: variables set in its containers.
        inside_files: files present in its containers.
        srun_option: the option that its Slurm plugin adds to ``srun --help``, and the plugin's name; or None.
    """

    kind: str
    title: str
    programs: tuple[str, ...] = ()
    driven: bool = True
    version_arguments: tuple[str, ...] = ("--version",)
    processes: tuple[str, ...] = ()
    binds_files: bool = True
    userns_options: tuple[str, ...] = ()
    parting_options: Mapping[str, str] = MappingProxyType({})
    inside_variables: tuple[str, ...] = ()
    inside_files: tuple[str, ...] = ()
    srun_option: tuple[str, str] | None = None

    def detect(self, environ: Mapping[str, str]) -> Engine | None:
        """The engine as it behaves on this machine; None if it is missing. Starts nothing that can hang."""
        return None

    def words(self, engine: Engine, call: Call) -> Words:
        """The command line that starts ``call``; a pure function.

        Raises:
            FairleadError: exit code 121; the engine cannot open the image, or its options cannot express a path.
        """
        raise NotImplementedError

    def locate(self, view: View) -> str:
        """The path of its program; empty if it is not installed."""
        return next(filter(None, map(view.which, self.programs)), "")

    def version_command(self, view: View, path: str) -> tuple[str, ...]:
        """The command that prints its version."""
        return (path, *self.version_arguments)

    def setuid_files(self, view: View, real: str) -> tuple[str, ...] | None:
        """Programs that make it start as root if one of them is setuid root; None if it never does.

        Args:
            real: path of its program, with links resolved.
        """
        return None

    def configuration(self, view: View, real: str) -> Config | None:
        """Its configuration; None if no file is found."""
        return None

    def srun_settings(self, view: View) -> dict[str, str]:
        """Settings of an engine that only its ``srun_option`` reveals."""
        return {}


def prefix_of(real: str) -> str:
    """The installation prefix of a program in ``bin``."""
    return real.rsplit("/", 2)[0] if real.count("/") > 1 else ""
