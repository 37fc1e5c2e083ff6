"""Several NCCLs in an image: the first that a process maps wins, and the plan is for one of them."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.base.errors import Finding, warning
from fairlead.nccl.checks.model import Case, Check
from fairlead.nccl.choose import others
from fairlead.nccl.interfaces import common, net_versions


class Several(Check):
    about = "a process of the image maps one NCCL, and the plan knows which"

    def look(self, case: Case) -> Iterator[Finding]:
        more = others(case.facts)
        if not more:
            return
        shown = "; ".join(f"{library.path} ({library.title})" for library in more)
        mapped = {path for path in case.facts.nccl_mapped.values() if path}
        users = [path for path, real in case.facts.nccl_mapped.items() if real != case.library.path]
        why = f"files need another: {users[0]}" if len(mapped) > 1 and users else "the first counts"
        plugin = case.host.plugin if case.host else None
        unserved = [
            library
            for library in more
            if plugin and net_versions(library) and not common(library, plugin)
        ]
        if unserved:
            why += f"; the plugin does not serve {unserved[0].title}"
        yield warning("nccl-several", library=case.library, others=shown, why=why)


CHECK = Several()
