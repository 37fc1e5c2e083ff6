"""``--timeline FILE``: what the ranks are told, and what becomes of what they recorded."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import click

from fairlead import trace
from fairlead.findings import FairleadError, Finding, Severity
from fairlead.plan import Bind

MOUNT = "/opt/fairlead/timeline"  # where the file's folder appears in every container


@dataclass(frozen=True)
class Timeline:
    """A file that a run is to leave."""

    file: Path

    @property
    def binds(self) -> tuple[Bind, ...]:
        return (Bind(str(self.file.parent), MOUNT),)

    @property
    def env(self) -> dict[str, str]:
        """Variables for the container."""
        return {"FAIRLEAD_COMM_TIMELINE": f"{MOUNT}/{self.file.name}"}

    def clear(self) -> None:
        """What an earlier run has left must not look like this one's."""
        shutil.rmtree(trace.parts_of(self.file), ignore_errors=True)
        self.file.unlink(missing_ok=True)

    def finish(self) -> Finding | None:
        """Puts together what the ranks of a run left that had no time to; says where there is nothing."""
        try:
            merged = trace.merge(self.file)
        except FairleadError as exc:
            return exc.findings[0]
        if merged:
            return Finding(
                Severity.INFO,
                f"the timeline ends where the run did: {merged.line()}",
                str(self.file),
                "the ranks had no time to put it together",
                "open it in Perfetto or chrome://tracing",
                "comm-timeline",
            )
        if self.file.is_file():
            return None
        return Finding(
            Severity.WARNING,
            "there is no timeline",
            str(self.file),
            "no rank of the command called fairlead.comm.init",
            "see that the script uses fairlead.comm; MPI calls of other programs are not recorded",
            "comm-timeline",
        )


def wanted(file: str) -> Timeline | None:
    """
    Raises:
        click.UsageError: there cannot be such a file.
    """
    if not file:
        return None
    path = Path(file).absolute()
    if path.is_dir() or not path.parent.is_dir():
        why = "is a folder" if path.is_dir() else f"{path.parent} is no folder"
        raise click.UsageError(f"--timeline {file}: {why}")
    return Timeline(path)
