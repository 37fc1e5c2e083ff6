"""Launches what training asks for by a proved plan: one :data:`fairlead.train.host.Runner`."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from fairlead import launch as launching
from fairlead.plan import Bind, Plan
from fairlead.train.host import Runner, RunOutcome

_TAIL_BYTES = 8000


def runner(plan: Plan, cache: Path, log: Path) -> Runner:
    """A runner that launches every command by ``plan``.

    Args:
        cache: fairlead's cache, for the runs' records.
        log: file that all output of the ranks is added to.
    """

    def run(ranks: int, command: Sequence[str], binds: Sequence[Path]) -> RunOutcome:
        folder = launching.new_run_folder(cache)
        shared = [Bind(str(path.absolute()), str(path.absolute())) for path in binds]
        line = launching.command_line(plan, command, ranks, binds=shared, record=folder)
        with log.open("ab") as stream:
            start = stream.tell()
            stream.write(f"$ {line.shell()}\n".encode())
            stream.flush()
            result = launching.launch(
                line, folder, stdout=stream, stderr=stream, stdin=subprocess.DEVNULL
            )
        with log.open("rb") as stream:
            stream.seek(start)
            said = stream.read()[-_TAIL_BYTES:].decode(errors="replace")
        finding = launching.explain_exit(result)
        if finding:
            said += f"\n{finding.what}"
        return RunOutcome(result.code, said)

    return run
