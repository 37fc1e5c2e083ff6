"""A launcher's declaration, and the values that it works on.

Each launcher is a module with a :class:`Driver`; :mod:`fairlead.launchers.registry` finds them.
:mod:`fairlead.launch.choose_launcher` chooses one for a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from fairlead.base.errors import FairleadError, fail
from fairlead.base.system import View
from fairlead.elf.facts import AbiFamily

BINDINGS = ("none", "core", "socket", "numa")


@dataclass(frozen=True)
class Launcher:
    """A program that starts ranks.

    Attributes:
        family: the MPIs whose processes it can connect; another family's each run alone.
        kind: its driver; ``mpiexec`` for one of which only its family is known.
        pmi: how it lets ranks find each other, in its own words, where it offers several.
        options: the site's words for it.
        folders: of the nodes, which ranks must see to find each other.
    """

    path: str
    family: AbiFamily
    title: str
    kind: str = "mpiexec"
    pmi: str = ""
    options: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shape:
    """How many ranks, and where. 0 and empty leave it to the launcher.

    Attributes:
        per_node: ranks on each node.
        cores, gpus: of each rank.
        bind: one of :data:`BINDINGS`.
        hosts: names of the nodes.
        time_s: seconds after which the scheduler ends it.
        partition: or queue.
        extra: the user's own words for the launcher, last so that they win.
    """

    ranks: int = 1
    nodes: int = 0
    per_node: int = 0
    cores: int = 0
    gpus: int = 0
    bind: str = ""
    hosts: tuple[str, ...] = ()
    time_s: int = 0
    account: str = ""
    partition: str = ""
    extra: tuple[str, ...] = ()

    def of(self, ranks: int) -> Shape:
        """The same for so many ranks, which may need fewer of the nodes."""
        if ranks >= self.ranks or not (self.nodes or self.hosts):
            return replace(self, ranks=ranks)
        count = self.nodes or len(self.hosts)
        needed = -(-ranks // self.per_node) if self.per_node else ranks
        nodes = min(count, needed)
        return replace(self, ranks=ranks, nodes=min(self.nodes, nodes), hosts=self.hosts[:nodes])

    @property
    def spread(self) -> tuple[int, ...]:
        """Ranks of each node, the first ones filled first; empty where the nodes are not known."""
        count = self.nodes or len(self.hosts)
        if not count:
            return ()
        if self.per_node:
            left = [self.ranks - i * self.per_node for i in range(count)]
            return tuple(max(0, min(self.per_node, n)) for n in left)
        even, more = divmod(self.ranks, count)
        return tuple(even + (i < more) for i in range(count))

    @property
    def each(self) -> int:
        """Ranks on the fullest node; 0 where the nodes are not known."""
        return self.per_node or max(self.spread, default=0)


@dataclass(frozen=True)
class Words:
    """What is executed: words, and the variables around them."""

    argv: tuple[str, ...]
    environ: Mapping[str, str] = field(default_factory=dict)


class Driver:
    """A kind of launcher: how it is recognised, and the command lines that it takes.

    Subclass it in a module of this package, or of another distribution with an entry point of the group
    ``fairlead.launchers``; the module's ``LAUNCHER`` is an instance.

    Attributes:
        kind: its name in site profiles and for ``--launcher``.
        programs: its names on PATH, the preferred first.
        title: its product name; empty where its ``--version`` tells.
        family: the one family whose ranks it connects; unknown where that depends on ``--mpi`` and the like.
        in_profiles: a site profile may name it. An MPI's own ``mpiexec`` goes by ``mpiexec`` there.
        version_arguments: print its version; empty for one that starts a job whatever its arguments are.
        version_after: text before the version in what it prints.
        prologue: shell text that each rank runs before its command; ``$1`` is the run's folder.
        scheduler: kind of the scheduler whose nodes it asks for by itself; empty where it does not.
    """

    kind: str
    programs: tuple[str, ...]
    title: str = ""
    family: AbiFamily = AbiFamily.UNKNOWN
    in_profiles: bool = True
    version_arguments: tuple[str, ...] = ("--version",)
    version_after: str = ""
    prologue: str = ""
    scheduler: str = ""

    def words(self, launcher: Launcher, shape: Shape, inner: tuple[str, ...]) -> Words:
        """What starts ``inner`` as each rank; a pure function.

        Raises:
            FairleadError: exit code 2; the launcher cannot express the shape.
        """
        raise NotImplementedError

    def describe(
        self, program: str, speaks: AbiFamily, pmi: str, preferred_pmi: tuple[str, ...] = ()
    ) -> Launcher:
        """The launcher at ``program``, for ranks of an MPI of the family ``speaks``.

        Args:
            pmi: how ranks find each other, if the user fixed it.
            preferred_pmi: the site's order, in a profile's words.
        """
        return Launcher(program, self.family, Path(program).name, self.kind, pmi)

    def is_present(self, view: View, text: str) -> bool:
        """Whether a program of its name that printed ``text`` as its version is this launcher."""
        return True

    def cancel(self, program: str, folder: Path, environ: Mapping[str, str]) -> None:
        """Ends what a launch has left on other nodes; ``folder`` is the run's."""


def cannot(launcher: Launcher, option: str, why: str, remedy: str) -> FairleadError:
    """The error of a shape that a launcher has no word for."""
    return fail(
        "launcher-option-unsupported",
        launcher_title=launcher.title,
        option=option,
        launcher_path=launcher.path,
        why=why,
        remedy=remedy,
    )


def clock(seconds: int) -> str:
    """``H:MM:SS``, which every scheduler but LSF takes."""
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
