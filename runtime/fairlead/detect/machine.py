"""A machine with its MPIs and its site: what probes ask beyond :class:`fairlead.base.system.View`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fairlead import site as sites
from fairlead.base.errors import FairleadError, Finding
from fairlead.base.system import Machine
from fairlead.detect.network import with_gpus
from fairlead.mpi import host as hostmpi
from fairlead.mpi.host import HostMpi
from fairlead.nccl.host import discover, rules_of
from fairlead.nccl.model import HostNccl
from fairlead.site import Site


@dataclass(frozen=True)
class Profile:
    """What is known of this site.

    Attributes:
        site: None where no profile fits, or one that is named is wrong; ``findings`` say why.
        reason: why it is this one.
    """

    site: Site | None
    reason: str = ""
    findings: tuple[Finding, ...] = ()


class MpiMachine(Machine):
    """This machine.

    Args:
        patience_s: how long an MPI's launcher may take to print its version.
    """

    def __init__(
        self,
        environ: Mapping[str, str] = os.environ,
        root: Path = Path("/"),
        patience_s: float = 10.0,
    ):
        super().__init__(environ, root)
        self.patience_s = patience_s
        self._profile: Profile | None = None

    def host_mpis(self) -> tuple[HostMpi, ...]:
        """Every MPI, the preferred first."""
        return hostmpi.discover(
            self.environ, self.root, self.profile().site, patience_s=self.patience_s
        )

    def mpis_below(self, prefix: str, reason: str) -> tuple[HostMpi, ...]:
        """The MPIs whose libraries are in one folder, or in the library folders of a prefix."""
        return hostmpi.in_prefix(
            Path(self._at(prefix)), reason, self.environ, patience_s=self.patience_s
        )

    def net_plugins(self) -> HostNccl:
        """What there is for NCCL; no code of a plugin is run."""
        rules = rules_of(self.profile().site)
        return with_gpus(discover(rules, self, self.environ, self.root), self)

    def profile(self) -> Profile:
        if self._profile is None:  # no fix changes it, and several checks ask
            try:
                self._profile = Profile(*sites.resolve(None, self.environ))
            except FairleadError as exc:
                self._profile = Profile(None, findings=exc.findings)
        return self._profile
