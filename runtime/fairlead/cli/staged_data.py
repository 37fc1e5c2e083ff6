"""``--data s3://…`` of verbs that train: the data set is staged to the nodes for as long as they run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from fairlead.cli.options import Planning
from fairlead.cli.screen import print_findings
from fairlead.cli.staging import STAGE_BANDWIDTH, STAGE_CACHE, STAGE_TO, staged_here
from fairlead.cli.within import Ready
from fairlead.objects.url import Url, is_url, parse
from fairlead.site.model import Site
from fairlead.transfer import remote
from fairlead.transfer.job import Wish
from fairlead.transfer.model import InItem
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
    """Where data of a URL are staged."""

    to: str = STAGE_TO
    cache: int = STAGE_CACHE
    bandwidth: int = STAGE_BANDWIDTH

    def wish(
        self, urls: Mapping[str, Url], site: Site, environ: Mapping[str, str] = os.environ
    ) -> Wish | None:
        """What is to be staged, each as its name; None without a URL.

        Raises:
            FairleadError: exit codes 2 and 121; it cannot be read, or there is no such storage.
        """
        if not urls:
            if self.to or self.cache or self.bandwidth:
                raise click.UsageError("nothing is staged: --data is no URL")
            return None
        pins = {str(url): remote.listing_of(str(url)) for url in urls.values()}
        place = choose(self.to, site.storage, site.name, environ)
        items = tuple(InItem(str(url), name) for name, url in urls.items())
        how = Remote(pins, self.bandwidth, self.cache)
        return Wish(items, (), place, job=job_here(environ), remote=how)


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
