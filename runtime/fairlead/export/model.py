"""The input of an export, and the files that it makes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fairlead.base.errors import FairleadError, fail
from fairlead.engines.model import Engine
from fairlead.image.open import Image
from fairlead.launchers.model import Launcher
from fairlead.mpi.host import HostMpi
from fairlead.nccl.model import HostNccl
from fairlead.site.model import Site
from fairlead.site.resolved_paths import NOTHING, Here

STAGE = "stage.sh"  # the script that stages what an export brings


@dataclass(frozen=True)
class ExportFile:
    """A file of an export.

    Attributes:
        path: below the folder that the export is written to.
        mode: its permissions.
        goes: where it belongs, and who puts it there; for people.
    """

    path: str
    text: str
    goes: str
    mode: int = 0o644


@dataclass(frozen=True)
class Facts:
    """What an export is made from.

    Attributes:
        node: the machine's name.
        host: the MPI of the machine; None where none was found or none is needed.
        image: None for an export that serves every image.
        against: evidence that this machine does not belong to the site, whose MPI is then missing too.
        here: what of the profile's paths is on the machine.
        stage_root: the folder of the machine below which its MPI is staged.
        isolate: staged copies get a DT_RPATH, by patchelf.
        form: how Shifter gets the staged folder: ``copy`` or ``bind``.
        name: of the module, the kernel, the environment.
        programs: of the image, to be offered as commands.
        fairlead: the words that start fairlead there.
        mpi: the prefix of the MPI that launches are to use; empty for the one that each user's fairlead prefers.
        tools: programs of the machine by name, where they were looked for.
        closed: what of this machine other users cannot read, and why; of paths that an export may name.
        private: the export is for its maker alone.
        carries: ``mpi``, or ``nccl`` for NCCL's network plugin.
        nccl: what the machine has for NCCL; None if that is not known.
        folder: where the files are written, absolute.
    """

    site: Site
    node: str
    host: HostMpi | None
    launcher: Launcher | None = None
    engine: Engine | None = None
    image: Image | None = None
    against: tuple[str, ...] = ()
    here: Here = NOTHING
    stage_root: str = "/opt/fairlead/stage"
    isolate: bool = True
    form: str = "copy"
    name: str = ""
    programs: tuple[str, ...] = ()
    fairlead: tuple[str, ...] = ("fairlead",)
    mpi: str = ""
    tools: Mapping[str, str] = field(default_factory=dict)
    closed: Mapping[str, str] = field(default_factory=dict)
    private: bool = False
    carries: str = "mpi"
    nccl: HostNccl | None = None
    folder: str = ""

    @property
    def options(self) -> list[str]:
        """Options of `fairlead run` that make a launch the same for every user."""
        engine = ["--engine", self.engine.kind] if self.engine else []
        return [*engine, *(["--mpi", self.mpi] if self.mpi else [])]

    @property
    def label(self) -> str:
        """Its MPI by product and version, as ``mpich-5.0.2``: those of two MPIs differ."""
        if self.host is None:
            return "mpi"
        titles = (self.host.library.title, self.launcher.title if self.launcher else "")
        title = next((t for t in titles if re.search(r"\d", t)), "")
        if not title:  # Open MPI's library does not say its version
            path = hashlib.sha256(self.host.library.path.encode()).hexdigest()[:6]
            title = f"{titles[0]} {path}"
        return re.sub(r"[^a-z0-9.]+", "-", title.lower()).strip("-.")


def unfit(what: str, value: str, why: str, target: str) -> FairleadError:
    """A value that a format cannot hold."""
    return fail(
        "export-value-unrepresentable", target=target, what=what, value=value[:200], why=why
    )


def check_name(name: str, letters: str, why: str, target: str) -> None:
    """Sees that a name is of ``letters``, a regular expression.

    Raises:
        FairleadError: exit code 2; it is not.
    """
    if not re.fullmatch(letters, name):
        raise unfit(f"the name `{name}`", name, why, target)


def check_path(path: str, marks: str, why: str, target: str) -> None:
    """Sees that a path has none of ``marks``, a regular expression.

    Raises:
        FairleadError: exit code 2; it has one.
    """
    if re.search(marks, path):
        raise unfit(path, path, why, target)


def need_image(facts: Facts, target: str) -> Image:
    """The image, of an export that is made for one.

    Raises:
        FairleadError: exit code 2; none was named.
    """
    if facts.image is None:
        raise fail("export-image", target=target)
    return facts.image


@dataclass(frozen=True)
class Target:
    """A target of ``fairlead site export``; its module's ``EXPORT``.

    Attributes:
        about: one line for ``--help``.
        files: its files, a pure function of the facts.
        nccl: its files that bring NCCL's network plugin instead of the MPI; None if it cannot.
    """

    about: str
    files: Callable[[Facts], tuple[ExportFile, ...]]
    nccl: Callable[[Facts], tuple[ExportFile, ...]] | None = None
