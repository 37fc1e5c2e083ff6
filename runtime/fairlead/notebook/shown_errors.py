"""Errors of fairlead in cells: under the traceback they say where, why and what to do next, as in a script."""

from __future__ import annotations

from typing import Any

from fairlead.base.errors import FairleadError


def explain(shell: Any) -> None:
    """Has IPython's ``shell`` show the whole of a :class:`FairleadError`."""

    def show(self: Any, kind: Any, value: Any, trace: Any, tb_offset: Any = None) -> list[str]:
        lines: list[str] = self.InteractiveTB.structured_traceback(
            kind, value, trace, tb_offset=tb_offset
        )
        lines += [
            "\n".join(f"{label} {text}" for label, text in finding.details)
            for finding in value.findings
        ]
        self._showtraceback(kind, value, lines)
        return lines

    shell.set_custom_exc((FairleadError,), show)
