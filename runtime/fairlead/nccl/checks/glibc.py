"""The plugin's libraries must run on the C and C++ libraries that ranks have."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.base.errors import Finding, error
from fairlead.elf.facts import Elf
from fairlead.elf.mpi_symbols import GLIBC_PIECES, RUNTIME_PIECES
from fairlead.elf.reader import version_key
from fairlead.mpi.host import needs
from fairlead.nccl.checks.model import Case, Check


class Glibc(Check):
    about = "the plugin and its libraries run on the image's glibc and libstdc++"

    def look(self, case: Case) -> Iterator[Finding]:
        if case.host is None:
            return
        parts = tuple(e for e in case.host.parts if _is_brought(e, case))
        for prefix, have, name in (
            ("GLIBC", case.glibc, "glibc"),
            ("GLIBCXX", case.libstdcxx, "libstdc++"),
        ):
            version, who = needs(parts, prefix)
            if version_key(version) > version_key(have):
                yield error(
                    "nccl-glibc",
                    plugin=case.host.plugin,
                    name=name,
                    prefix=prefix,
                    version=version,
                    who=who,
                    have=have or "none",
                    os=case.facts.os or case.image,
                )


def _is_brought(elf: Elf, case: Case) -> bool:
    if GLIBC_PIECES.match(elf.name) or elf.name in RUNTIME_PIECES:
        return False
    return elf.name not in case.of_mpi


CHECK = Glibc()
