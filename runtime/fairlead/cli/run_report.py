"""The report of ``fairlead run``: what became of one launch, however it ended."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fairlead.base import comm_waits
from fairlead.base.errors import ExitCode, FairleadError, Finding, error, os_error_as
from fairlead.cli.screen import say
from fairlead.launch import leaving, ranks_output
from fairlead.launch.launch import CommandLine
from fairlead.launch.run_folder import exits, seconds_of, signal_name
from fairlead.proof.verdict import Proof
from fairlead.session.model import Prepared

if TYPE_CHECKING:
    from fairlead.perf.draw.compose import CommandRun, RankEnd

_TITLE = 80  # characters of the command


class RunReport:
    """Collects what a launch shows, and writes report.html and report.json from it."""

    def __init__(
        self, output: Path, prepared: Prepared, command: tuple[str, ...], repeat: tuple[str, ...]
    ):
        """Makes the folder: where that fails, it does so before any work.

        Raises:
            FairleadError: jinja2 is not installed, or the folder cannot be made.
        """
        from fairlead.perf.draw.pages import require_tools

        require_tools("jinja2")
        with os_error_as("output-unwritable-give", output=output):
            output.mkdir(parents=True, exist_ok=True)
        self._output, self._prepared = output, prepared
        self._command, self._repeat = command, repeat
        self._line: CommandLine | None = None
        self._folder: Path | None = None
        self._begun = 0.0
        self._proof: Proof | None = None
        self._findings: list[Finding] = []
        self._session: Path | None = None

    def started(self, line: CommandLine, folder: Path) -> None:
        """The launcher is about to start, and its ranks report to ``folder``."""
        self._line, self._folder, self._begun = line, folder, time.monotonic()

    def proved(self, proof: Proof) -> None:
        """MPI has started on every rank, as planned or not."""
        self._proof = proof

    def served(self, session: Path) -> None:
        """The launch is a session of the bridge, with this folder."""
        self._session = session

    def noticed(self, finding: Finding) -> None:
        """Adds a doubt that came up on the way."""
        self._findings.append(finding)

    @contextmanager
    def of_failures(self) -> Iterator[None]:
        """Writes the report where what is done within fails."""
        try:
            yield
        except FairleadError as exc:
            say(f"report: {self.write(exc.code, exc.findings)[0]}")
            raise
        except KeyboardInterrupt:
            stopped = error("run-interrupted", command=shlex.join(self._command))
            say(f"report: {self.write(ExitCode.INTERRUPTED, [stopped])[0]}")
            raise

    def write(
        self, exit_code: int, findings: list[Finding] | tuple[Finding, ...]
    ) -> tuple[Path, Path]:
        """Writes page and document; returns their paths.

        Args:
            findings: how it ended.
        Raises:
            FairleadError: the folder cannot be written.
        """
        from fairlead.bridge.timings import done_in
        from fairlead.perf.draw.compose import bridge_use, compose
        from fairlead.perf.draw.run_page import write_report

        words = " ".join(self._command)
        title = (
            f"{words[:_TITLE]}{'…' if len(words) > _TITLE else ''} in {self._prepared.image.name}"
        )
        report = compose(
            title,
            self._prepared,
            self._proof,
            self._repeat,
            run=self._run(exit_code),
            findings=(*findings, *self._findings),
        )
        if self._session:
            report = replace(report, bridge=bridge_use(done_in(self._session)))
        with os_error_as("output-unwritable-give", output=self._output):
            return write_report(self._output, report)

    def _run(self, exit_code: int) -> CommandRun:
        from fairlead.perf.draw.compose import CommandRun

        command, line, folder = shlex.join(self._command), self._line, self._folder
        if not line or not folder:
            return CommandRun(command, "", exit_code, None)
        ends = tuple(self._ends(folder))
        last = [end.seconds for end in ends if end.seconds is not None]
        # Ranks that were killed leave no time.
        seconds = max(last) if len(last) == len(ends) else time.monotonic() - self._begun
        return CommandRun(command, line.shell(), exit_code, seconds, ends, comm_waits.read(folder))

    def _ends(self, folder: Path) -> Iterator[RankEnd]:
        from fairlead.perf.draw.compose import ENDED, RankEnd

        request = self._prepared.plan.request
        hosts = {str(rank.rank): rank.host for rank in self._proof.ranks} if self._proof else {}
        ended = {end.rank: end for end in exits(folder)}
        left = leaving.left(folder, {rank: end.code for rank, end in ended.items()})
        started = {path.name.partition(".")[2] for path in folder.glob("exit.*")}
        numbered = [str(rank) for rank in range(request.ranks)]
        # Where the launcher gave none a number, they go by their processes'.
        names = numbered if started <= {*numbered} else sorted(started)
        for rank in names:
            end = ended.get(rank)
            lost = left.get(rank, ENDED) if rank in started else "was not started"
            log = ranks_output.log_of(request.output_dir, rank) if request.output_dir else ""
            yield RankEnd(
                rank,
                hosts.get(rank) or leaving.host_of(folder, rank),
                end.code if end else None,
                signal_name(end.code) if end else lost,
                seconds_of(folder, end) if end else None,
                str(log),
            )
