"""Launches what training asks for by a plan, each launch proved: a :data:`fairlead.train.host.Runner`."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from fairlead import launch as launching
from fairlead.findings import FairleadError
from fairlead.plan import Bind
from fairlead.proof import Proof
from fairlead.session import Prepared, launch_proved
from fairlead.train.host import Runner, RunOutcome

_TAIL_BYTES = 8000


def runner(
    prepared: Prepared, log: Path, told: Callable[[Proof], None], limit_s: float | None = None
) -> Runner:
    """A runner that launches every command by the plan.

    Args:
        log: file that all output of the ranks is added to.
        told: called with the proof of each launch that starts MPI.
        limit_s: how long a start-up may make no progress.
    """

    def run(ranks: int, command: Sequence[str], binds: Sequence[Path]) -> RunOutcome:
        hosts: dict[int, str] = {}

        def noted(proof: Proof) -> None:
            hosts.update((rank.rank, rank.host) for rank in proof.ranks)
            told(proof)

        shared = [Bind(str(path.absolute()), str(path.absolute())) for path in binds]
        with log.open("ab") as stream:
            start = stream.tell()
            stream.write(f"$ {' '.join(command)}\n".encode())
            stream.flush()
            try:
                done = launch_proved(
                    prepared, command, ranks, told=noted, limit_s=limit_s, binds=shared,
                    stdout=stream, stderr=stream, stdin=subprocess.DEVNULL,
                )  # fmt: skip
            except FairleadError as exc:
                found = [
                    replace(f, where=launching.on_host(f.where, hosts))
                    if f.check == "rank-died"
                    else f
                    for f in exc.findings
                ]
                raise FairleadError(found, exc.code) from None
        with log.open("rb") as written:
            written.seek(start)
            said = written.read()[-_TAIL_BYTES:].decode(errors="replace")
        finding = launching.explain_exit(done.result)
        if finding:
            said += f"\n{finding.what}"
        killed = launching.killed(done.result, hosts)
        return RunOutcome(done.result.code, said, killed)

    return run
