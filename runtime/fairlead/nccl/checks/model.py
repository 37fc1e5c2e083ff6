"""What a check of NCCL's network looks at, and its base class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from fairlead.base.errors import Finding
from fairlead.elf.facts import Elf, ImageFacts, NcclLibrary
from fairlead.nccl.decide import Decision
from fairlead.nccl.model import Ask, HostNetwork, NcclPlan


@dataclass(frozen=True)
class Case:
    """A planned launch, as far as NCCL's network goes.

    Attributes:
        image: path of the image.
        library: the NCCL that ranks map.
        plan: None if no plugin is brought.
        env: the variables that NCCL and libfabric see in a rank.
        site: name of the site.
        glibc, libstdcxx: versions that ranks have; empty if unknown.
        of_mpi: libraries that the staged MPI brings, by name.
        loader: the host's loader starts the program, and its own words name the search path.
    """

    image: str
    facts: ImageFacts
    ask: Ask
    library: NcclLibrary
    decision: Decision
    plan: NcclPlan | None
    env: Mapping[str, str]
    site: str
    glibc: str = ""
    libstdcxx: str = ""
    of_mpi: Mapping[str, Elf] = field(default_factory=dict)
    loader: bool = False

    @property
    def host(self) -> HostNetwork | None:
        """The plugin that is brought."""
        return self.plan.host if self.plan else None

    @property
    def across(self) -> bool:
        """Whether the ranks may be on several nodes."""
        return self.ask.nodes != 1


class Check:
    """Base class of checks.

    Subclass it in a module of this package, or of another distribution with an entry point of the group
    ``fairlead.nccl.checks``, and assign an instance to the module's ``CHECK``. It is a pure function.

    Attributes:
        about: a one-line description for the docs.
    """

    about: str

    def look(self, case: Case) -> Iterator[Finding]:
        """What is wrong with a launch, each with a remedy; nothing if all is well."""
        raise NotImplementedError
