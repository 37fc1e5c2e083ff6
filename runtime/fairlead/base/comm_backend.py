"""How a backend of :mod:`fairlead.comm` is declared: its name, what it requires, and what starts it on the ranks.

A declaration is read on a login node, which may have neither NumPy nor mpi4py: the module that holds it imports them
within functions, or in modules of its own. A bundled backend is a module of ``fairlead.comm.backends`` with
``BACKENDS = (CommBackend(...),)``; another package adds one by an entry point of the group ``fairlead.comm_backends``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fairlead.base.errors import ExitCode, FairleadError, fail
from fairlead.base.registry import NamedRegistry


@dataclass(frozen=True)
class CommFacts:
    """What the choice of a backend depends on, before a launch.

    Attributes:
        asked, asked_by: the requested backend, and what requests it; "" where nothing does.
        image: its name, as the user gives it.
        modules: files of the image that use MPI: those of mpi4py and of Horovod show that they are installed,
            in any image, not only in fairlead's.
        wheels: its Python packages, by normalised name; None where they are unknown.
        site: the profile's name.
        wish, wish_by: the backend that the profile prefers, and the source of that; "".
        plugin: folder of the site's dl_comm on the machine; "" where it does not exist.
        plugin_named: the profile or a variable names such a folder.
        unseen: the machine was never inspected; only its profile is known.
        gpus: vendor of the nodes' GPUs, as in the profile: ``nvidia``, ``amd``, ``intel``, ``none``.
        gpus_given: ranks get GPUs in this launch.
        ordered: sums are requested in a fixed order of ranks.
        no_core: why the native core is not available; "" where it is.
    """

    asked: str = ""
    asked_by: str = ""
    image: str = ""
    modules: tuple[str, ...] = ()
    wheels: Mapping[str, str] | None = None
    site: str = ""
    wish: str = ""
    wish_by: str = ""
    plugin: str = ""
    plugin_named: bool = False
    unseen: bool = False
    gpus: str = "none"
    gpus_given: bool = False
    ordered: bool = False
    no_core: str = ""

    def has_module(self, folder: str) -> bool:
        """Whether the image has a file that uses MPI in a folder of that name, as ``/mpi4py/``."""
        return any(folder in path for path in self.modules)


class Availability(NamedTuple):
    """Whether a backend can be used: None where only the ranks will know; and why not, or what is not known."""

    possible: bool | None = True
    why: str = ""


@dataclass(frozen=True)
class Setting:
    """A variable that :mod:`fairlead.comm` reads.

    Attributes:
        default: in effect where the variable is not set; in the unit that the name ends in.
        meaning: one line for people.
    """

    name: str
    default: str
    meaning: str


@dataclass(frozen=True)
class CommBackend:
    """A backend.

    Attributes:
        name: as ``--comm`` and ``FAIRLEAD_COMM_BACKEND`` take it.
        summary: what carries the bytes; it is also the reason given where the backend is chosen unasked.
        available: whether it can be used, from facts.
        connect: the :class:`fairlead.comm.core.Comm` of this rank, from the MPI beneath
            (:class:`fairlead.comm.backend.Backend`) and the environment. Collective, on every rank. None for what
            :mod:`fairlead.comm.startup` starts without reading a declaration.
        provided_by: what makes it available, as a remedy.
        not_chosen: why another is taken although it is available.
        priority: of the available ones that have a priority, the highest is chosen; 0: only when requested.
        why_chosen: the reason for that, from facts; "" for the summary.
        ordered: can add in a fixed order of ranks (``FAIRLEAD_COMM_DETERMINISTIC``).
        automatic: ranks choose it by themselves, so that no variable has to name it.
        host_arrays: for a backend that carries tensors on GPUs only: the one that carries arrays of the host.
        variables: what the ranks need in their environment, besides the name, from facts.
        folders: folders of the machine that the container must see, from facts.
        settings: variables that it reads.
        position: in lists; those of other packages come last.
    """

    name: str
    summary: str
    available: Callable[[CommFacts], Availability]
    connect: Callable[[Any, Mapping[str, str]], Any] | None
    provided_by: str
    not_chosen: str = "only when asked for"
    priority: int = 0
    why_chosen: Callable[[CommFacts], str] = lambda facts: ""
    ordered: bool = False
    automatic: bool = False
    host_arrays: str = ""
    variables: Callable[[CommFacts], Mapping[str, str]] = lambda facts: {}
    folders: Callable[[CommFacts], tuple[str, ...]] = lambda facts: ()
    settings: tuple[Setting, ...] = field(default=())
    position: int = 1000


REGISTRY: NamedRegistry[CommBackend] = NamedRegistry(
    "fairlead.comm.backends",
    "BACKENDS",
    "fairlead.comm_backends",
    order=lambda declaration: declaration.position,
)


def unknown(name: str, where: str, remedy: str, code: ExitCode = ExitCode.FAILED) -> FairleadError:
    """The error for an unknown backend."""
    from fairlead.base.suggest import suggest

    names = ("auto", *REGISTRY.names())
    near = suggest(name, names)
    if not near.startswith("Known"):
        near += f" Known: {', '.join(names)}."
    return fail("comm-backend", name=name, where=where, near=near, remedy=remedy, code=code)
