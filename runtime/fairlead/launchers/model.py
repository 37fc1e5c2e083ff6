"""A launcher's declaration, and the values that it works on.

Each launcher is a module with a :class:`Driver`; :mod:`fairlead.launchers.registry` finds them.
:mod:`fairlead.session.choose` chooses one for a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from fairlead.base.errors import FairleadError, Finding, fail
from fairlead.base.system import View
from fairlead.base.timeboxed import version
from fairlead.elf.facts import AbiFamily

BINDINGS = ("none", "core", "socket", "numa")


@dataclass(frozen=True)
class Launcher:
    """A program that starts ranks.

    Attributes:
        family: the MPI family whose ranks it can connect; ranks of other families run alone.
        kind: its driver; ``mpiexec`` if only its family is known.
        pmi: how it lets ranks find each other, in its own terms, if it offers several ways.
        options: the site's arguments for it.
        folders: folders of the nodes that ranks must see to find each other.
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
    """How many ranks run, and where. 0 or empty leaves it to the launcher.

    Attributes:
        per_node: ranks on each node.
        cores, gpus: of each rank.
        bind: one of :data:`BINDINGS`.
        hosts: names of the nodes.
        time_s: seconds after which the scheduler ends it.
        partition: or queue.
        extra: the user's arguments for the launcher, passed last so that they take precedence.
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
        """This shape for another number of ranks, which may need fewer nodes."""
        if ranks >= self.ranks or not (self.nodes or self.hosts):
            return replace(self, ranks=ranks)
        count = self.nodes or len(self.hosts)
        needed = -(-ranks // self.per_node) if self.per_node else ranks
        nodes = min(count, needed)
        return replace(self, ranks=ranks, nodes=min(self.nodes, nodes), hosts=self.hosts[:nodes])

    @property
    def spread(self) -> tuple[int, ...]:
        """Ranks on each node, filling the first nodes first; empty if the nodes are unknown."""
        count = self.nodes or len(self.hosts)
        if not count:
            return ()
        if self.per_node:
            left = [self.ranks - i * self.per_node for i in range(count)]
            return tuple(max(0, min(self.per_node, n)) for n in left)
        even, more = divmod(self.ranks, count)
        return tuple(even + (i < more) for i in range(count))

    @property
    def filled(self) -> int:
        """The number of nodes with ranks; 0 if the nodes are unknown."""
        return sum(ranks > 0 for ranks in self.spread)

    @property
    def hosts_with_ranks(self) -> tuple[tuple[str, int], ...]:
        """The named nodes that have ranks, with their number."""
        return tuple((h, n) for h, n in zip(self.hosts, self.spread, strict=False) if n)

    @property
    def each(self) -> int:
        """Ranks on the fullest node; 0 if the nodes are unknown."""
        return self.per_node or max(self.spread, default=0)


@dataclass(frozen=True)
class Words:
    """The command line to execute, and its environment."""

    argv: tuple[str, ...]
    environ: Mapping[str, str] = field(default_factory=dict)


class Driver:
    """A kind of launcher: how to recognise it, and its command lines.

    Subclass it in a module of this package, or of another distribution with an entry point of the group
    ``fairlead.launchers``; the module's ``LAUNCHER`` is an instance.

    Attributes:
        kind: its name in site profiles and for ``--launcher``.
        programs: its program names on PATH, in order of preference.
        title: its product name; empty if its ``--version`` output has it.
        family: the family whose ranks it connects; unknown if that depends on options such as ``--mpi``.
        in_profiles: a site profile may name it. The ``mpiexec`` of an MPI is called ``mpiexec`` there, and says
            itself which MPI it belongs to.
        in_image: it is a program of the image, and runs in a container that holds all ranks.
        version_arguments: arguments that print its version; empty if it starts a job with any arguments.
        version_after: the text that precedes the version in its output.
        prologue: shell text that each rank runs before its command; ``$1`` is the run's folder.
        scheduler: kind of the scheduler from which it requests nodes itself; empty if it does not.
        again: its variables for a launch on processors that another one may hold: a failed one, or the one that it is
            itself a part of.
        gives_places: variables in which it tells its ranks where its own MPI's files are.
        rank_in: variables in which it gives a rank its number, and its number on the node; empty if it has none.
        connects: variables without any of which a rank finds no other.
        files_per_rank: how many files it keeps open for each rank of a node, on that node; 0 if that is not known.
    """

    kind: str
    programs: tuple[str, ...]
    title: str = ""
    family: AbiFamily = AbiFamily.UNKNOWN
    in_profiles: bool = True
    in_image: bool = False
    version_arguments: tuple[str, ...] = ("--version",)
    version_after: str = ""
    prologue: str = ""
    scheduler: str = ""
    again: Mapping[str, str] = MappingProxyType({})
    gives_places: tuple[str, ...] = ()
    rank_in: tuple[str, str] = ("", "")
    connects: tuple[str, ...] = ()
    files_per_rank: int = 0

    def inside(self, environ: Mapping[str, str]) -> bool:
        """Whether a process with these variables is itself one of its ranks, whose processors it would wait for."""
        return False

    def words(self, launcher: Launcher, shape: Shape, inner: tuple[str, ...]) -> Words:
        """The command line that starts ``inner`` as each rank; a pure function.

        Raises:
            FairleadError: exit code 2; the launcher cannot express the shape.
        """
        raise NotImplementedError

    def describe(
        self, program: str, speaks: AbiFamily, pmi: str, preferred_pmi: tuple[str, ...] = ()
    ) -> Launcher:
        """The launcher at ``program``, for ranks of an MPI of the family ``speaks``.

        Args:
            pmi: how ranks find each other, if the user set it.
            preferred_pmi: the site's order of preference, in a profile's terms.
        """
        if not self.in_profiles:
            from fairlead.launchers.identify import identify

            return replace(identify(Path(program)), kind=self.kind)
        return Launcher(program, self.family, Path(program).name, self.kind, pmi)

    def is_present(self, view: View, text: str) -> bool:
        """Whether a program of that name whose version output is ``text`` is this launcher."""
        return True

    def titled(self, text: str) -> str:
        """Its title with its version, from its version output; without, if it prints none."""
        number = version(text, self.version_after) or version(text)
        return f"{self.title} {number if self.version_arguments else ''}".strip()

    def objection(
        self, launcher: Launcher, shape: Shape, uid: int, environ: Mapping[str, str]
    ) -> Finding | None:
        """Why it would refuse to start anything for the user ``uid``; None if it would not."""
        return None

    def cancel(self, program: str, folder: Path, environ: Mapping[str, str]) -> None:
        """Ends processes that a launch left on other nodes; ``folder`` is the run's folder."""


def cannot(launcher: Launcher, option: str, why: str, remedy: str) -> FairleadError:
    """The error for a shape that a launcher cannot express."""
    return fail(
        "launcher-option-unsupported", launcher=launcher, option=option, why=why, remedy=remedy
    )


def cannot_share_gpus(launcher: Launcher, why: str, variable: str) -> FairleadError:
    """:func:`cannot` for ranks that see every GPU; ``variable`` numbers the ranks of a node."""
    remedy = f"leave out --gpus-per-rank, and choose by {variable} in the program"
    return cannot(launcher, "how many GPUs each rank gets", why, remedy)


def given(*options: tuple[str, object]) -> list[str]:
    """The options that have a value, filled in.

    >>> given(("--nodes={}", 2), ("--time={}", ""))
    ['--nodes=2']
    """
    return [option.format(value) for option, value in options if value]


def pairs(*options: tuple[str, object]) -> list[str]:
    """The options that have a value, each followed by it as a word of its own."""
    return [word for option, value in options if value for word in (option, str(value))]


def clock(seconds: int) -> str:
    """``H:MM:SS``, which every scheduler except LSF accepts; empty for 0."""
    if not seconds:
        return ""
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
