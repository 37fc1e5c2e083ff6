"""A container engine's declaration, and the values that it works on.

Each engine is a module with a :class:`Driver`; :mod:`fairlead.engines.registry` finds them. Launchers, plans
and proofs name no engine.
"""

from __future__ import annotations

import enum
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from fairlead.base.errors import FairleadError, fail
from fairlead.base.system import View
from fairlead.base.timeboxed import clear, first, settings


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
        userns_per_rank: each container gets a separate user namespace.
        options: options that every container start needs on this machine.
        reasons: ``(option, why)`` for ``explain``.
        binds_files: it can bind a single file of the host over one of the image.
        takes: the form in which it opens images.
        makes_places: it creates mount points that the image lacks.
        own_binds: what it binds by itself, over places that it does not create; those of folders end in ``/``.
        folder: folder of the files that its options refer to by name.
        config: the configuration file with the settings below.
        store: folder with the images that it opens by name; empty if unknown, or if it opens paths.
        forbids_binds: the setting that forbids binding host paths; the engine warns, and starts the
            container without them.
        forbids_folders: the setting that forbids images that are folders.
        hides: folders that ranks of a node share but its containers do not see, each with its setting.
        joins: ranks of a node join one container in place of starting one each.
        shows: folders of the machine that its containers show by themselves, beyond home, working and temporary folders; ``/``
            where that is not known.
        reads: variables of the shell that name folders which it uses itself, or shows: they stay.
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
    own_binds: tuple[str, ...] = ()
    folder: str = ""
    config: str = ""
    store: str = ""
    forbids_binds: str = ""
    forbids_folders: str = ""
    hides: tuple[tuple[str, str], ...] = ()
    joins: bool = False
    shows: tuple[str, ...] = ("/",)
    reads: tuple[str, ...] = ()

    @property
    def parts_ranks(self) -> bool:
        """The ranks of a node have different user namespaces."""
        return self.userns_per_rank and not self.joins


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
        terminal: the command is a user's shell: it gets the terminal that the engine is started at.
        passes: variables besides the launcher's that the shell around a rank sets, for an engine that passes on only
            those that are named.
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
    terminal: bool = False
    passes: tuple[str, ...] = ()


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
    ``fairlead.engines``; the module's ``ENGINE`` is an instance. Only ``kind``, ``title``, ``programs`` and
    :meth:`words` have no default.

    Attributes:
        kind: its name in site profiles and for ``--engine``.
        title: its product name.
        programs: names of its program; the first on PATH is used. Empty for a part of ``srun``.
        variable: environment variable that names its program instead.
        driven: fairlead can run with it; otherwise fairlead only recognises it.
        version_arguments: arguments that print its version.
        processes: regular expressions of its process names, to find what a dying launch leaves behind.
        takes, binds_files, makes_places, own_binds, shows, reads, userns_per_rank, options, reasons: as of :class:`Engine`, for an
            engine that behaves the same on every machine.
        userns_options: options that give each rank a separate user namespace.
        parting_options: options that isolate the ranks of a node from each other, with the reason.
        inside_variables: variables set in its containers.
        inside_files: files present in its containers.
        srun_option: the option that its Slurm plugin adds to ``srun --help``, and the plugin's name; or None.
        config_files: places of its configuration file; ``{prefix}`` stands for its installation prefix.
        config_keys: the settings that affect how containers run.
        bind_limit: regular expression of what its options cannot express in a path, and why.
        no_overlay: the option without which a rank's root is an overlay; in a user namespace that starts no program with
            file capabilities (the kernel says EOVERFLOW).
        needed: beginning of a file's path that :meth:`kept` needs until the container runs; the number of the process that
            calls it follows.
        store_remedy: what to do when it is not known which file it opens for an image's name.
    """

    kind: str
    title: str
    programs: tuple[str, ...] = ()
    variable: str = ""
    driven: bool = True
    version_arguments: tuple[str, ...] = ("--version",)
    processes: tuple[str, ...] = ()
    takes: Takes = Takes.FILE
    binds_files: bool = True
    makes_places: bool = True
    own_binds: tuple[str, ...] = ()
    shows: tuple[str, ...] = ("/",)
    reads: tuple[str, ...] = ()
    userns_per_rank: bool = False
    options: tuple[str, ...] = ()
    reasons: tuple[tuple[str, str], ...] = ()
    userns_options: tuple[str, ...] = ()
    parting_options: Mapping[str, str] = MappingProxyType({})
    inside_variables: tuple[str, ...] = ()
    inside_files: tuple[str, ...] = ()
    srun_option: tuple[str, str] | None = None
    config_files: tuple[str, ...] = ()
    config_keys: tuple[str, ...] = ()
    bind_limit: tuple[str, str] = ("", "")
    no_overlay: str = ""
    needed: str = ""
    store_remedy: str = ""

    def detect(self, environ: Mapping[str, str] = os.environ) -> Engine | None:
        """The engine as it behaves on this machine; None if it is missing. Starts nothing that can hang.

        Raises:
            FairleadError: exit code 2; ``variable`` names something that cannot be executed.
        """
        path = find_program(self.variable, self.programs, environ) if self.driven else None
        if path is None:
            return None
        return Engine(
            self.kind, str(path), self.userns_per_rank, self.options, self.reasons,
            binds_files=self.binds_files, takes=self.takes, makes_places=self.makes_places,
            own_binds=self.own_binds, shows=self.shows, reads=self.reads,
        )  # fmt: skip

    def ordinary(self, environ: Mapping[str, str] = os.environ) -> Engine | None:
        """The engine as it behaves for an ordinary user of this machine, also if root asks; None if it is missing.

        Raises:
            FairleadError: exit code 2; ``variable`` names something that cannot be executed.
        """
        return self.detect(environ)

    def words(self, engine: Engine, call: Call) -> Words:
        """The command line that starts ``call``; a pure function.

        Raises:
            FairleadError: exit code 121; the engine cannot open the image, or its options cannot express a path.
        """
        raise NotImplementedError

    def can_join(self, engine: Engine, extra: Sequence[str], environ: Mapping[str, str]) -> bool:
        """Whether ranks can share a container: :meth:`kept` and :meth:`joining` work, and no option makes it a rank's own.

        Args:
            extra: the user's options.
        """
        return False

    def kept(self, engine: Engine, call: Call, run: str) -> Words:
        """The command line that starts ``call`` in a container which other commands can join.

        Args:
            run: the run's folder; ``call`` goes on for as long as it has input.
        """
        raise NotImplementedError

    def joining(self, engine: Engine, call: Call, run: str) -> Words:
        """The command line that starts ``call`` in the node's container of a run.

        Args:
            run: the run's folder, where :data:`fairlead.engines.rank_shell.KEEPER` finds what holds the container.
        """
        raise NotImplementedError

    def opens(self, engine: Engine, image: str, extra: Sequence[str] = ()) -> str:
        """The file or folder that it mounts when :meth:`words` is called with ``image``; empty if unknown.

        Args:
            extra: the user's options.
        Raises:
            FairleadError: exit code 121; it cannot open an image of this kind.
        """
        return image

    def binds_of(self, call: Call) -> Iterator[tuple[str, str, bool]]:
        """The binds of ``call``.

        Raises:
            FairleadError: exit code 121; its options cannot express a path.
        """
        unfit, why = self.bind_limit
        for source, target, read_only in call.binds:
            for path in (source, target) if unfit else ():
                if re.search(unfit, path):
                    raise unfit_bind(self.title, path, why)
            yield source, target, read_only

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
        prefix = prefix_of(real)
        path = first(view, *(place.format(prefix=prefix) for place in self.config_files))
        return Config(path, self.settings(view, path, view.read(path) or "")) if path else None

    def settings(self, view: View, path: str, text: str) -> dict[str, str]:
        """Those of its ``config_keys`` that are in its configuration file.

        Args:
            text: the file's content.
        """
        return {k: clear(v) for k, v in settings(text, self.config_keys).items() if v}

    def srun_settings(self, view: View) -> dict[str, str]:
        """Settings of an engine that only its ``srun_option`` reveals."""
        return {}


def find_program(
    variable: str, programs: Sequence[str], environ: Mapping[str, str], called: str = ""
) -> Path | None:
    """The program of an engine: what ``variable`` names, else the first of ``programs`` on PATH; None without.

    Args:
        called: what ``variable`` should name, for errors; a path of the first program by default.
    Raises:
        FairleadError: exit code 2; the variable names something that cannot be executed.
    """
    chosen = environ.get(variable) if variable else ""
    for name in (chosen,) if chosen else programs:
        if path := shutil.which(name, path=environ.get("PATH", os.defpath)):
            return Path(path).absolute()
    if chosen:
        program = called or programs[0]
        raise fail("engine-variable", variable=variable, chosen=chosen, program=program)
    return None


def prefix_of(real: str) -> str:
    """The installation prefix of a program in ``bin``."""
    return real.rsplit("/", 2)[0] if real.count("/") > 1 else ""


def unfit_image(engine: str, image: str, why: str, remedy: str) -> FairleadError:
    """The error of an engine that cannot open this kind of image."""
    return fail("engine-image", engine=engine, image=image, why=why, remedy=remedy)


def need_squashfs(engine: str, image: str, why: str) -> None:
    """Sees that an image is a bare squashfs, for an engine that opens one by its path.

    Raises:
        FairleadError: exit code 121; it is another kind of file.
    """
    if not image.endswith((".squashfs", ".sqsh")):
        remedy = "fairlead build RECIPE --format squashfs -o DIR, then DIR/RECIPE.squashfs as IMAGE"
        raise unfit_image(engine, image, why, remedy)


def unfit_bind(engine: str, path: str, why: str) -> FairleadError:
    """The error of an engine whose options cannot express a path or a variable."""
    return fail("engine-bind", engine=engine, path=path, why=why)
