"""A :data:`fairlead.ml.train.runner.Runner` that launches by a plan and proves each launch."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

from fairlead.base.errors import FairleadError, Finding
from fairlead.launch import launch as launching
from fairlead.launch import ranks_output
from fairlead.launch.launch import LaunchResult
from fairlead.ml.train.host import WORKER
from fairlead.ml.train.runner import Runner, RunOutcome
from fairlead.proof.verdict import Proof
from fairlead.session.model import LaunchOptions, Prepared
from fairlead.session.recorder import Recorder
from fairlead.session.restarts import Launches
from fairlead.session.run import launch_proved
from fairlead.swap.model import Bind

_TAIL_BYTES = 8000


def runner(
    prepared: Prepared, log: Path, on_proof: Callable[[Proof], None], limit_s: float | None = None,
    recorder: Recorder | None = None, env: Mapping[str, str] = MappingProxyType({}), attempts: Launches | None = None,
) -> Runner:  # fmt: skip
    """A runner that launches every command by the plan.

    Args:
        log: file to which all output of the ranks is appended.
        on_proof: called with the proof of each launch that starts MPI.
        limit_s: how long a start-up may make no progress.
        recorder: of a timeline, in which the trainings among the launches are.
        env: the user's variables for the container.
        attempts: make the launches, on the nodes that failures have left.
    """

    def run(ranks: int, command: Sequence[str], binds: Sequence[Path]) -> RunOutcome:
        hosts: dict[int, str] = {}
        shared = [Bind(str(path.absolute()), str(path.absolute())) for path in binds]
        launch = recorder.launch() if recorder and WORKER in command else None
        if launch:
            shared += launch.binds

        def proved(proof: Proof) -> None:
            hosts.update((rank.rank, rank.host) for rank in proof.ranks)
            if launch:
                launch.proved()
            on_proof(proof)

        def placed(finding: Finding) -> Finding:
            if finding.check != "rank-died":
                return finding
            return replace(finding, where=launching.on_host(finding.where, hosts))

        with log.open("ab") as stream:
            start = stream.tell()
            stream.write(f"$ {' '.join(command)}\n".encode())
            stream.flush()
            try:
                options = LaunchOptions(
                    on_proof=proved, on_start=lambda line, folder: launch.begun() if launch else None,
                    limit_s=limit_s, binds=shared, env={**env, **(launch.env if launch else {})},
                    stdout=stream, stderr=stream, stdin=subprocess.DEVNULL,
                )  # fmt: skip
                launches = attempts.launch if attempts else partial(launch_proved, prepared)
                done = launches(command, ranks, options)
            except FairleadError as exc:
                raise FairleadError([placed(f) for f in exc.findings], exc.code) from None
            finally:
                if launch:
                    launch.ended()
        output = tail(log, start) + _own_log(prepared, done.result)
        finding = launching.explain_exit(done.result)
        if finding:
            output += f"\n{finding.what}"
        return RunOutcome(done.result.code, output, launching.killed(done.result, hosts))

    return run


def _own_log(prepared: Prepared, result: LaunchResult) -> str:
    """The end of what the first rank that failed has written to its file of ``--output-dir``."""
    folder = prepared.plan.request.output_dir
    first = next((rank for rank in result.ranks if rank.code), None)
    if not folder or first is None:
        return ""
    path = ranks_output.log_of(folder, first.rank)
    return tail(path, max(path.stat().st_size - _TAIL_BYTES, 0)) if path.is_file() else ""


def tail(log: Path, start: int) -> str:
    """The end of what was appended to a file after ``start``."""
    with log.open("rb") as stream:
        stream.seek(start)
        return stream.read()[-_TAIL_BYTES:].decode(errors="replace")
