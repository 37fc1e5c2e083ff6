"""``--stage-in``, ``--stage-out`` and what belongs to them, and what they add up to."""

from __future__ import annotations

import contextlib
import os
import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from fairlead.base.errors import FairleadError, Finding, fail
from fairlead.base.paths import cache_dir
from fairlead.base.progress import Progress
from fairlead.cli.declare import SIZE, option
from fairlead.cli.options import Planning
from fairlead.cli.screen import print_findings
from fairlead.launch.nodes import unreachable
from fairlead.launch.run_folder import new_run_folder
from fairlead.launchers import registry as launchers
from fairlead.objects.model import Listing
from fairlead.objects.url import is_url, parse, split_name
from fairlead.schedulers.registry import find_allocation
from fairlead.site.model import Site
from fairlead.swap.model import Plan
from fairlead.transfer import datawarp, mount, remote
from fairlead.transfer.job import EachNode, Stage, Wish, staged, through_launcher, unmount
from fairlead.transfer.model import MOUNT, InItem, Links, OutItem
from fairlead.transfer.mount import MountItem, Mounts
from fairlead.transfer.place import choose, job_here
from fairlead.transfer.remote import Remote

_UNMOUNT_S = 60.0
WHOLE = "."  # the name of a folder itself, among what is in it
STAGE_TO = option(
    "--stage-to memory|node-local|burst-buffer|PATH",
    "Where to stage.  [default: the site's node-local disk, else its memory]",
)
STAGE_CACHE = option(
    "--stage-cache SIZE",
    "Keep what URLs bring on the node's storage for later runs, up to SIZE, e.g. 200GB.",
    type=SIZE,
    default=0,
    show_default=False,
)
STAGE_BANDWIDTH = option(
    "--stage-bandwidth RATE",
    "Limit for all nodes together to and from object stores, e.g. 2GB/s.",
    type=SIZE,
    default=0,
    show_default=False,
)


def in_item(text: str) -> InItem:
    if is_url(text):
        url, name = split_name(text)
        place = parse(url)
        return InItem(str(place), _name(name or place.name, f"--stage-in {text}"))
    # A path that is there is meant as it stands, colons and all.
    source, name = text, ""
    if not os.path.lexists(text) and ":" in text:
        source, _, name = text.rpartition(":")
        if name.startswith("/") and source.isalnum() and not os.path.lexists(source):
            raise click.UsageError(
                f"--stage-in {text}: there is no folder `{source}`, and a URL is written {source}:/{name}"
            )
    path = Path(source).expanduser().absolute()
    name = name or Path(posixpath.normpath(path)).name
    return InItem(posixpath.normpath(path), _name(name, f"--stage-in {text}"))


def _out_item(text: str) -> OutItem:
    if is_url(text):
        raise click.UsageError(f"--stage-out {text}: write NAME:URL")
    name, _, target = text.partition(":")
    name = _name(name, f"--stage-out {text}")
    if is_url(target):
        return OutItem(name, str(parse(f"{target}{name}" if target.endswith("/") else target)))
    if target.endswith("/"):  # into that folder
        target += posixpath.basename(name)
    path = Path(target or name).expanduser().absolute()
    return OutItem(name, posixpath.normpath(path))


def out_of_folder(text: str) -> OutItem:
    """``[NAME:]DST``: what is in a folder, or all of it, which is called ``.``."""
    if is_url(text):
        return OutItem(WHOLE, str(parse(text)))
    name, colon, target = text.partition(":")
    if colon and name != WHOLE:
        return _out_item(text)
    if is_url(target):
        return OutItem(WHOLE, str(parse(target)))
    path = Path(target if colon else text).expanduser().absolute()
    return OutItem(WHOLE, posixpath.normpath(path))


def _name(name: str, where: str) -> str:
    parts = name.rstrip("/").split("/")
    if {"", ".", ".."} & set(parts) or "\0" in name:
        raise click.UsageError(
            f"{where}: `{name}` is not a valid name below {MOUNT}: it cannot start with /, or contain . or .."
        )
    return "/".join(parts)


def _apart(names: list[str], option: str) -> None:
    for name in names:
        if names.count(name) > 1 and name != WHOLE:
            raise click.UsageError(
                f"{option}: two have the name `{name}`; add :NAME to one of them"
            )
        if inside := next((other for other in names if other.startswith(f"{name}/")), None):
            raise click.UsageError(
                f"{option}: `{inside}` lies inside `{name}`; give it another name"
            )


def items(read: Callable[[str], InItem | OutItem]) -> Callable[..., Any]:
    """The callback of an option whose words name items, which must lie apart."""

    def callback(context: click.Context, option: click.Parameter, texts: Sequence[str]) -> Any:
        items = tuple(map(read, texts))
        _apart([item.name for item in items], option.opts[0])
        return items

    return callback


def _mounts(
    context: click.Context, option: click.Parameter, texts: Sequence[str]
) -> tuple[MountItem, ...]:
    return tuple(map(_mount, texts))


def _mount(text: str) -> MountItem:
    source, target = split_name(text) if is_url(text) else text.rpartition(":")[::2]
    if not source or not target.startswith("/") or posixpath.normpath(target) == "/":
        raise click.UsageError(f"--mount {text}: write SRC:DST, with a DST that begins with /")
    if is_url(source):
        return MountItem(str(parse(source)), posixpath.normpath(target))
    return MountItem(str(Path(source).expanduser().absolute()), posixpath.normpath(target))


def check(ins: Sequence[InItem], outs: Sequence[OutItem]) -> None:
    """Checks that sources exist and results will have a place.

    Raises:
        FairleadError: exit code 2; they do not, or have none.
    """
    for item in ins:
        if is_url(item.source):
            remote.listing_of(item.source)
        elif not Path(item.source).exists():
            raise fail("stage-source-missing", source=item.source)
    for result in outs:
        if is_url(result.target):
            remote.check_target(result.target)
            continue
        target = Path(result.target)
        if os.path.lexists(target):
            raise fail("stage-target-exists", target=target, one_name=result.name)
        above = next(parent for parent in target.parents if os.path.lexists(parent))
        if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
            raise fail("stage-target-unwritable", target=target, above=above, one_name=result.name)


def pins(ins: Sequence[InItem]) -> dict[str, Listing]:
    """What is at the URLs of items now, whose very versions are brought.

    Raises:
        FairleadError: as :func:`fairlead.transfer.remote.listing_of`.
    """
    return {i.source: remote.listing_of(i.source) for i in ins if is_url(i.source)}


@dataclass(frozen=True)
class Staging:
    """What the options say, as given."""

    ins: tuple[InItem, ...] = option(
        "--stage-in SRC[:NAME]",
        "Copy a file, folder or URL (s3://…) to each node, as $FAIRLEAD_STAGE/NAME. Repeatable.",
        callback=items(in_item),
    )
    outs: tuple[OutItem, ...] = option(
        "--stage-out NAME[:DST]",
        "Copy $FAIRLEAD_STAGE/NAME back after the command; DST, a path or URL, must not exist. Repeatable.",
        callback=items(_out_item),
    )
    to: str = STAGE_TO
    links: str = option(
        "--stage-links",
        "What to do with links that lead out of what is staged in: refuse, or copy their targets.",
        type=click.Choice(["refuse", "follow"]),
        default="refuse",
    )
    keep: bool = option("--stage-keep", "Keep staged-in files for the next run of this job.")
    mounts: tuple[MountItem, ...] = option(
        "--mount SRC:DST",
        "Show a bucket (s3://…) or a squashfs image as the read-only folder DST, on each node. Repeatable.",
        callback=_mounts,
    )
    cache: int = STAGE_CACHE
    bandwidth: int = STAGE_BANDWIDTH

    def words(self) -> list[str]:
        """The options again, for a line that is run elsewhere."""
        words = [f"--stage-in={item}" for item in self.ins]
        words += [f"--stage-out={item}" for item in self.outs]
        words += [f"--stage-to={self.to}"] if self.to else []
        words += ["--stage-links=follow"] if self.links == "follow" else []
        words += [f"--mount={item}" for item in self.mounts]
        words += [f"--stage-cache={self.cache}"] if self.cache else []
        words += [f"--stage-bandwidth={self.bandwidth}"] if self.bandwidth else []
        return words + ["--stage-keep"] * self.keep

    def check(self) -> None:
        """Checks that sources exist and results will have a place: early, since nodes cost.

        Raises:
            FairleadError: exit code 2; they do not, or have none.
        """
        mount.check(self.mounts)
        check(self.ins, self.outs)

    def wish(self, site: Site, environ: Mapping[str, str] = os.environ) -> Wish | None:
        """What is to be staged here; None when nothing is.

        Raises:
            FairleadError: exit code 2; there is no such storage, or something is in the way.
        """
        if not self.ins and not self.outs:
            if self.mounts:
                return None
            if self.to or self.keep or self.links == "follow":
                raise click.UsageError("nothing is staged: --stage-in or --stage-out is missing")
            return None
        job = job_here(environ)
        if self.keep and not job:
            raise click.UsageError(
                "--stage-keep: this is not a scheduler's job, so nothing would ever remove it"
            )
        self.check()
        place = choose(self.to, site.storage, site.name, environ)
        how = Remote(pins(self.ins), self.bandwidth, self.cache)
        return Wish(self.ins, self.outs, place, Links(self.links), self.keep, job, how)


def mounts_here(
    data: Staging,
    plan: Plan,
    planning: Planning,
    ranks: int,
    environ: Mapping[str, str] = os.environ,
) -> Mounts | None:
    """What a run mounts; None for nothing."""
    if not data.mounts:
        return None
    place = choose(data.to, plan.site.storage, plan.site.name, environ)
    mount.clear_stale(place.path)
    allocation = find_allocation(environ)
    only = allocation is not None and allocation.hosts == (os.uname().nodename,)
    alone = only or launchers.is_in_image(plan.launcher)
    everywhere = not alone and bool(step_words(plan, planning, ranks, environ))
    return Mounts(data.mounts, place.path, everywhere)


def unmount_after(
    mounts: Mounts | None, planning: Planning, ranks: int, on_finding: Callable[[Finding], None]
) -> Callable[[Plan], None]:
    """What ends, after a launch of a plan, the mounts of its other nodes."""

    def unmount_of(plan: Plan) -> None:
        if mounts is None or not mounts.everywhere:
            return
        shape = plan.request.shape
        if shape.hosts:
            gone = unreachable(shape.hosts, unresolved=False)
            left = tuple(host for host in shape.hosts if host not in gone)
            if not left:
                return
            plan = _on(plan, left)
        each_node = _steps(plan, step_words(plan, planning, ranks), _UNMOUNT_S)
        unmount(mounts, each_node, on_finding)

    return unmount_of


def _on(plan: Plan, hosts: tuple[str, ...]) -> Plan:
    shape = replace(plan.request.shape, hosts=hosts, nodes=len(hosts))
    return replace(plan, request=replace(plan.request, shape=shape))


def _steps(plan: Plan, words: Sequence[str], limit_s: float | None = None) -> EachNode:
    """Starts steps, also on processors that another step may hold: one of a node that has died, or the shell's own."""
    kind = plan.launcher.kind
    again = launchers.LAUNCHERS.get(kind).again if kind in launchers.LAUNCHERS else {}
    return through_launcher(words, plan.unset, {**os.environ, **again}, limit_s)


def staged_here(
    wish: Wish | None,
    plan: Plan,
    planning: Planning,
    ranks: int,
    progress: Progress,
    spares: int = 0,
) -> contextlib.AbstractContextManager[Stage | None]:
    """Around a launch: stages in on every node that it may come to, and out after it.

    Args:
        spares: nodes of the job that a restart may come to.
    """
    if wish is None:
        return contextlib.nullcontext()
    if spares and (allocation := find_allocation(os.environ)):
        plan = _on(plan, plan.request.shape.hosts or allocation.hosts)
    words = step_words(plan, planning, ranks)
    nodes = len(plan.request.shape.hosts) or plan.request.shape.nodes or 1
    how = replace(wish.remote, rate=wish.remote.rate / nodes)
    return staged(
        replace(wish, remote=how),
        each_node=_steps(plan, words) if words else None,
        shared=new_run_folder(cache_dir()) if words else None,
        progress=progress,
        on_interrupt=print_findings,
    )


def step_words(
    plan: Plan, planning: Planning, ranks: int, environ: Mapping[str, str] = os.environ
) -> tuple[str, ...]:
    """What starts a step on every node that ranks may come to; empty when that is this one."""
    shape = replace(plan.request.shape, ranks=ranks)
    spread = bool(planning.launcher) or shape.nodes > 1 or bool(shape.hosts)
    # In a job ranks may be elsewhere even on one node: this may be the login node that requested it.
    if not spread and not job_here(environ):
        return ()
    # Copying wants neither the ranks' GPUs nor their binding, and the ranks' own nodes.
    shape = replace(shape, gpus=0, bind="")
    allocation = find_allocation(environ)
    nodes = len(shape.hosts) or shape.nodes
    if shape.hosts or (allocation and nodes and allocation.nodes == nodes):
        # No choice of nodes is left to the launcher: one process on each will do.
        one_each = replace(shape, ranks=nodes, nodes=nodes, per_node=1, cores=0)
        with contextlib.suppress(FairleadError):  # a launcher that has no word for that
            return launchers.words(plan.launcher, one_each, ()).argv
    return launchers.words(plan.launcher, shape, ()).argv


def space_line(capacity: str, site: Site | None, scheduler: str) -> str:
    """The directive by which a job gets ``capacity`` of a burst buffer.

    Raises:
        FairleadError: exit code 2; the site has none, or it is not Slurm's to give.
    """
    if site is None or site.storage.burst_buffer != "datawarp" or scheduler != "slurm":
        raise (
            fail(
                "stage-place-no-burst-buffer-in-profile",
                capacity=capacity,
                site_name=site.name,
                scheduler=scheduler,
            )
            if site
            else fail("stage-place-no-profile", capacity=capacity)
        )
    return datawarp.job_space(capacity, site.storage.burst_buffer_options)


def stage_json(stage: Stage | None) -> dict[str, Any] | None:
    """What became of a run's data, for ``--json``; None when nothing was staged."""
    if stage is None:
        return None
    wish = stage.wish
    return {
        "place": wish.place,
        "folder": wish.folder,
        "mount": MOUNT,
        "nodes": stage.nodes,
        "in": [item.to_json() for item in stage.moved_in],
        "out": [item.to_json() for item in stage.moved_out],
        "kept": [
            {"node": node, "name": name, "path": path} for (node, name), path in stage.kept.items()
        ],
        "findings": stage.findings,
    }
