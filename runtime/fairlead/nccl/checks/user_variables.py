"""Variables of the user that take the place of what the plan needs."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.base.errors import Finding, warning
from fairlead.nccl.checks.model import Case, Check
from fairlead.nccl.selection import NET, PLUGIN


class UserVariables(Check):
    about = "the user's own variables leave the host's plugin in use"

    def look(self, case: Case) -> Iterator[Finding]:
        there = case.ask.host
        if case.plan or not case.ask.wanted or there is None or not there.networks:
            return
        names = [name for name in (PLUGIN, NET) if case.ask.user.get(name)]
        if names:
            values = ", ".join(f"{name}={case.ask.user[name]}" for name in names)
            plugin = there.networks[0].plugin
            yield warning("nccl-user", values=values, names=", ".join(names), plugin=plugin)


CHECK = UserVariables()
