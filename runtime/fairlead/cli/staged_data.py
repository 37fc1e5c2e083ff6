"""URLs of verbs that train: data sets, staged to the nodes for as long as they run, and the folder of ``-o``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from fairlead.base.errors import ExitCode, Severity
from fairlead.base.progress import Progress
from fairlead.cli.declare import option
from fairlead.cli.options import Planning
from fairlead.cli.screen import print_findings
from fairlead.cli.staging import (
    STAGE_BANDWIDTH,
    STAGE_CACHE,
    STAGE_TO,
    check,
    in_item,
    items,
    out_of_folder,
    pins,
    staged_here,
)
from fairlead.cli.within import Ready
from fairlead.objects.url import Url, is_url, parse
from fairlead.site.model import Site
from fairlead.transfer.job import Results, Wish, copied_in, results_out
from fairlead.transfer.model import InItem, OutItem
from fairlead.transfer.place import choose, job_here
from fairlead.transfer.remote import Remote


class _FolderOrUrl(click.ParamType):  # type: ignore[type-arg]
    """A folder that is there, or a URL of an object store."""

    name = "folder"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, Path | Url):
            return value
        if is_url(value):
            return parse(value)
        folder = click.Path(exists=True, file_okay=False, path_type=Path)
        return folder.convert(value, param, ctx)


FOLDER_OR_URL = _FolderOrUrl()


@dataclass(frozen=True)
class DataStorage:
    """Where data of a URL are staged, and where the folder of ``-o`` goes."""

    outs: tuple[OutItem, ...] = option(
        "--stage-out [NAME:]DST",
        "Copy the folder of -o, or NAME in it, to DST after the command, however it ended; DST, a path or URL, must"
        " not exist. Repeatable.",
        callback=items(out_of_folder),
    )
    to: str = STAGE_TO
    cache: int = STAGE_CACHE
    bandwidth: int = STAGE_BANDWIDTH

    @property
    def own_ins(self) -> tuple[InItem, ...]:
        """What is copied to the folder of ``-o`` before."""
        return ()

    def check(self, folder: Path) -> None:
        """Early, since nodes cost.

        Raises:
            FairleadError: as :func:`fairlead.cli.staging.check`.
            click.UsageError: a folder would be copied into itself.
        """
        check(self.own_ins, self.outs)
        for item in self.outs:
            if not is_url(item.target) and Path(item.target).is_relative_to(folder / item.name):
                raise click.UsageError(f"--stage-out {item}: {item.target} is in {folder}")

    def wish(
        self, urls: Mapping[str, Url], site: Site, environ: Mapping[str, str] = os.environ
    ) -> Wish | None:
        """What is to be staged, each as its name; None without a URL.

        Raises:
            FairleadError: exit codes 2 and 121; it cannot be read, or there is no such storage.
        """
        if not urls:
            travels = self.own_ins or self.outs
            if self.to or self.cache or (self.bandwidth and not travels):
                raise click.UsageError("nothing is staged: --data is no URL")
            return None
        place = choose(self.to, site.storage, site.name, environ)
        ins = tuple(InItem(str(url), name) for name, url in urls.items())
        how = Remote(pins(ins), self.bandwidth, self.cache)
        return Wish(ins, (), place, job=job_here(environ), remote=how)

    def lines(self, folder: Path) -> list[str]:
        """What would be copied to and from the folder of ``-o``."""
        before = [f"{item.source} copied to {folder / item.name}" for item in self.own_ins]
        return before + [f"{folder / item.name} copied to {item.target}" for item in self.outs]

    @contextlib.contextmanager
    def around(self, folder: Path, progress: Progress) -> Iterator[Results]:
        """Around what fills the folder of ``-o``: what belongs there comes before, and goes after.

        Raises:
            FairleadError: exit codes 2, 121 and 123; something cannot be brought.
        """
        how = Remote(pins(self.own_ins), self.bandwidth)
        print_findings(copied_in(self.own_ins, str(folder), how, progress))
        with results_out(self.outs, str(folder), how, progress, print_findings) as results:
            yield results


@dataclass(frozen=True)
class TrainStorage(DataStorage):
    """The same, and what comes to that folder before."""

    ins: tuple[InItem, ...] = option(
        "--stage-in SRC[:NAME]",
        "Copy a file, folder or URL (s3://…) to NAME in the folder of -o before the command, unless it is there:"
        " checkpoints, for --resume. Repeatable.",
        callback=items(in_item),
    )

    @property
    def own_ins(self) -> tuple[InItem, ...]:
        return self.ins


def code_of(code: int, results: Results) -> int:
    """The exit code of a command whose own is ``code``, and whose results may have stayed behind."""
    behind = any(finding.severity is Severity.ERROR for finding in results.findings)
    return code or (ExitCode.LAUNCH_FAILED if behind else ExitCode.DONE)


def results_json(results: Results) -> dict[str, Any] | None:
    """What became of them, for ``--json``; None where nothing was to be copied."""
    if not results.outs:
        return None
    return {"out": [item.to_json() for item in results.moved], "findings": results.findings}


def paths(wish: Wish | None) -> dict[str, Path]:
    """Where staged data are on every node, by name."""
    return {item.name: Path(wish.folder) / "data" / item.name for item in wish.ins} if wish else {}


@contextlib.contextmanager
def staged_data(wish: Wish | None, ready: Ready, planning: Planning) -> Iterator[None]:
    """Around launches: the data are on their nodes."""
    plan, ranks = ready.prepared.plan, ready.shape.ranks
    with staged_here(wish, plan, planning, ranks, ready.progress) as stage:
        yield
    if stage:
        print_findings(stage.findings)
