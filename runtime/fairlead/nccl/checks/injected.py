"""GPU libraries of the host that an engine brings into the container, and that need a newer glibc than the image has.

``--nv`` and ``--rocm`` put them in front of the image's own: the loader refuses them, and no program finds its GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.base.errors import Finding, error, warning
from fairlead.elf.reader import version_key
from fairlead.nccl.checks.model import Case, Check
from fairlead.nccl.host import DRIVERS

# Without these a program still computes: other interfaces, code that is compiled late.
_OPTIONAL = ("libOpenCL.so.1", "libnvidia-ptxjitcompiler.so.1", "libpci.so.3")


class Injected(Check):
    about = "the host's GPU libraries, as the engine brings them, run on the image's glibc"

    def look(self, case: Case) -> Iterator[Finding]:
        there = case.ask.host
        if there is None or not case.ask.injects or not case.glibc:
            return
        for elf in there.drivers:
            version = elf.needs.get("GLIBC", "")
            brought = elf.soname in DRIVERS.get(there.gpu, ())
            ours = elf.machine == case.library.elf.machine
            if brought and ours and version_key(version) > version_key(case.glibc):
                given = {"elf": elf, "version": version, "have": case.glibc, "os": case.facts.os}
                if elf.soname in _OPTIONAL:
                    yield warning("nccl-injected-optional", **given)
                else:
                    yield error("nccl-injected", **given)


CHECK = Injected()
