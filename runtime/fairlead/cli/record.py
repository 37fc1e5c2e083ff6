"""``--record``: what a verb that launches writes down of its run."""

from __future__ import annotations

import os
import shlex
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import click

from fairlead.base.errors import ExitCode, FairleadError, Finding, error, warning
from fairlead.base.paths import cache_dir
from fairlead.base.progress import Silent
from fairlead.cli.declare import FILE, FOLDER, option
from fairlead.cli.key import passphrase
from fairlead.cli.screen import print_findings
from fairlead.cli.within import Ready
from fairlead.image import keys
from fairlead.image.keys import PrivateKey
from fairlead.launch.launch import CommandLine
from fairlead.launch.run_folder import exits
from fairlead.proof.verdict import Proof
from fairlead.record import folder as folders
from fairlead.record import secrets
from fairlead.record.data import digests
from fairlead.record.gather import MAPS, Asked, before, ranks_of
from fairlead.record.model import Data, Outcome, Ranks, RunRecord, ranges
from fairlead.session.model import Launched, LaunchOptions
from fairlead.session.restarts import Attempts, Launches

# Parameters that a repetition sets itself, or that change only what is shown and where.
LEFT_OUT = (
    "record", "inputs", "results", "record_key",
    "as_json", "label", "output", "output_dir", "quiet", "timeline_file", "verbose",
)  # fmt: skip
_UTC = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What is recorded of a run."""

    record: Path | None = option(
        "--record FOLDER",
        "Write a record of the run into this new folder, which `fairlead replay` repeats.",
        type=FOLDER,
    )
    inputs: tuple[str, ...] = option(
        "--input PATH", "For --record: a file or folder that the run reads. Repeatable."
    )
    results: tuple[str, ...] = option(
        "--result PATH", "For --record: a file or folder that the run writes. Repeatable."
    )
    record_key: Path | None = option(
        "--record-key FILE", "Sign the record with this private key.", type=FILE
    )

    def check(self) -> None:
        """
        Raises:
            click.UsageError: the options contradict each other.
        """
        if not self.record:
            given = {
                "--input": self.inputs,
                "--result": self.results,
                "--record-key": self.record_key,
            }
            if alone := next((flag for flag, value in given.items() if value), ""):
                raise click.UsageError(f"{alone} is for --record FOLDER")
            return
        place = _place(self.record)
        if not place.name:
            raise click.UsageError(f"--record {self.record}: give a new folder")
        for flag, names in (("--input", self.inputs), ("--result", self.results)):
            for name in names:
                path = _place(Path(name).expanduser())
                if place.is_relative_to(path) or path.is_relative_to(place):
                    raise click.UsageError(f"{flag} {name}: a record holds no data, and is in none")


def _place(path: Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 (`..` goes, links stay)


class Recording:
    """Collects what a launch shows, and writes its record, however it ended."""

    def __init__(self, wanted: Recorded, ready: Ready, asked: Asked):
        """Reserves the folder, opens the key and reads the inputs: what fails does so before any work.

        Raises:
            FairleadError: exit code 2; one of them cannot be had.
        """
        assert wanted.record is not None
        self._folder = _place(wanted.record)
        click.get_current_context().with_resource(folders.reserved(self._folder))
        self._key = _opened(wanted.record_key)
        self._progress = Silent() if getattr(wanted, "quiet", False) else ready.progress
        self._before, self._attached = before(
            ready.prepared, asked, ready.allocation, self._progress
        )
        self._results = {name: _kind(name) for name in wanted.results}
        self._plan, self._count = ready.prepared.plan, ready.shape.ranks
        self._proof: Proof | None = None
        self._run: Path | None = None
        self._proved_in: Path | None = None
        self._launched: Launched | None = None
        self._clock, self._began = time.monotonic(), time.strftime(_UTC, time.gmtime())

    @property
    def env(self) -> dict[str, str]:
        """What asks the ranks for the libraries that they map."""
        return {MAPS: "1"}

    def started(self, line: CommandLine, folder: Path) -> None:
        """The launcher is about to start, and its ranks report to ``folder``."""
        if self._run is None:
            self._clock, self._began = time.monotonic(), time.strftime(_UTC, time.gmtime())
        self._run = folder

    def proved(self, proof: Proof) -> None:
        """MPI has started on every rank, as planned or not."""
        self._proof, self._proved_in = proof, self._run

    def around(self, attempts: Attempts) -> Launches:
        """``attempts``, whose launches it follows; the last one that started MPI counts."""
        return _Followed(self, attempts)

    def ended(self, launched: Launched) -> None:
        """The launch is over."""
        self._launched = launched

    @contextmanager
    def of_failures(self, command: tuple[str, ...]) -> Iterator[None]:
        """Writes the record where what is done within fails."""
        try:
            yield
        except FairleadError as exc:
            self.write(exc.code, exc.findings[:1])
            raise
        except KeyboardInterrupt:
            stopped = error("run-interrupted", command=shlex.join(command))
            self.write(ExitCode.INTERRUPTED, [stopped])
            raise

    def write(
        self,
        exit_code: int,
        findings: list[Finding] | tuple[Finding, ...] = (),
        weights: str = "",
    ) -> Path:
        """Writes the record; returns its folder.

        Args:
            findings: what went wrong, the first of them first.
            weights: sha256 of those of a training.
        Raises:
            FairleadError: it cannot be written, or a result cannot be read.
        """
        ended, seconds = time.strftime(_UTC, time.gmtime()), time.monotonic() - self._clock
        folder = Path(self._before.parameters.folder)
        digested = digests(self._results, folder, "read the results", self._progress)
        results = tuple(replace(data, before=self._results[data.name]) for data in digested)
        absent = [result.path for result in results if result.kind == "absent"]
        if absent and not exit_code:
            print_findings([warning("record-result-absent", paths=", ".join(absent))])
        if weights:
            results += (Data("weights", "", "weights", weights, files=0),)
        outcome = Outcome(
            exit_code=int(exit_code),
            began=self._began,
            ended=ended,
            seconds=round(seconds, 3),
            error=secrets.text(findings[0].what) if findings else "",
            failed=_failed(self._run),
        )
        record = RunRecord(str(uuid.uuid4()), self._before, self._ranks(), results, outcome)
        folders.write(self._folder, record, self._attached, self._key)
        return self._folder

    def _ranks(self) -> Ranks:
        folder = self._proved_in or self._run
        ranks = ranks_of(self._plan, self._count, self._proof, folder, cache_dir())
        if not self._launched:
            return ranks
        worlds = tuple(world.title for world in self._launched.worlds)
        nccl = self._launched.nccl.line if self._launched.nccl else ""
        return replace(ranks, worlds=worlds, nccl=nccl)


class _Followed:
    """The launches of a training, recorded."""

    def __init__(self, recording: Recording, attempts: Attempts):
        self._recording, self._attempts = recording, attempts

    def launch(self, command: Sequence[str], ranks: int, options: LaunchOptions) -> Launched:
        recording = self._recording

        def started(line: CommandLine, folder: Path) -> None:
            recording.started(line, folder)
            options.on_start(line, folder)

        def proved(proof: Proof) -> None:
            recording.proved(proof)
            options.on_proof(proof)

        env = {**options.env, **recording.env}
        own = replace(options, env=env, on_start=started, on_proof=proved)
        return self._attempts.launch(command, ranks, own)


def _opened(path: Path | None) -> PrivateKey | None:
    return keys.open_private(path.absolute(), lambda: passphrase(path)) if path else None


def _kind(name: str) -> str:
    path = Path(name).expanduser()
    return "folder" if path.is_dir() else "file" if os.path.lexists(path) else "absent"


def _failed(run: Path | None) -> Mapping[str, int]:
    """The codes of ranks that have failed, by their numbers."""
    by_code: dict[int, list[int]] = {}
    for end in exits(run) if run else ():
        if end.code and end.rank.isdecimal():
            by_code.setdefault(end.code, []).append(int(end.rank))
    return {ranges(ranks): code for code, ranks in by_code.items()}
