"""One libfabric for MPI and NCCL: a process maps one library of a name, the first that is asked for."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.base.errors import Finding, error, info
from fairlead.elf.reader import version_key
from fairlead.nccl.checks.model import Case, Check


class SharedLibraries(Check):
    about = "what MPI and the plugin both need is one library, new enough for both"

    def look(self, case: Case) -> Iterator[Finding]:
        host = case.host
        if host is None:
            return
        needed = max((part.needs.get("FABRIC", "") for part in host.parts), key=version_key)
        for elf in host.closure:
            other = case.of_mpi.get(elf.name)
            if other is None or other.path == elf.path or not elf.name.startswith("libfabric.so"):
                continue
            offered = other.offers.get("FABRIC", "")
            if version_key(needed) > version_key(offered):
                texts = {"needed": needed, "offered": offered or "none"}
                yield error("nccl-libfabric-old", elf=elf, other=other, **texts)
            else:
                yield info("nccl-libfabric-shared", elf=elf, other=other)


CHECK = SharedLibraries()
