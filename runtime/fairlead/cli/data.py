"""``fairlead data``: data sets in folders and object stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from fairlead.base.errors import ExitCode, FairleadError, fail
from fairlead.base.paths import atomic_write
from fairlead.base.progress import human_bytes
from fairlead.base.sizes import bytes_of
from fairlead.cli.declare import FILE, FOLDER_HERE, JSON, PATH, SIZE, argument, declared, option
from fairlead.cli.group import Group
from fairlead.cli.screen import answer, print_json, progress, say, table
from fairlead.objects import dataset, pack, share, sync
from fairlead.objects.cache import Cache, folder_in
from fairlead.objects.dataset import Described, Folder, Place, Prefix, place_of
from fairlead.objects.registry import open_store
from fairlead.objects.sync import Prefer, Rules
from fairlead.objects.url import parse

_SHOWN = 20
_UNITS = {"m": 60, "h": 3600, "d": 86400}
BANDWIDTH = option(
    "--bandwidth RATE",
    "Limit, e.g. 200MB/s.",
    type=SIZE,
    default=0,
    show_default=False,
)


@click.group(cls=Group)
def data() -> None:
    """Manage data sets in folders and object stores.

    PLACE is a folder or a URL: s3://BUCKET/PREFIX, gs://, abfs:// or https://. Credentials come from where the store's own
    tools have them, such as ~/.aws.

    \b
    fairlead data list s3://lab                       the data sets there
    fairlead data describe s3://lab/hep               shards, samples, digest
    fairlead data pack photos shards                  many small files as few large ones
    fairlead data sync shards s3://lab/photos         upload; the other way round, download
    fairlead data verify s3://lab/photos              read all of it and compare
    fairlead data share s3://lab/photos --for 3d      links that work for a time
    fairlead data cache                               what is kept on this node
    """


@contextmanager
def _moving(title: str, as_json: bool) -> Iterator[Callable[[int], None]]:
    with progress(as_json).stage(title, unit="B") as stage:
        yield stage.advance


@data.command("list", short_help="List the data sets of a place.")
@declared
def list_sets(
    place: str = argument(metavar="PLACE"),
    digest: str = option("--digest DIGEST", "Only sets whose digest begins with this."),
    as_json: bool = JSON,
) -> int:
    """List the data sets of PLACE: folders with a data.json, and what is in none. Exits with 1 if there is none.

    \b
    fairlead data list s3://lab
    fairlead data list /project/data
    """
    sets = [item for item in dataset.sets_in(place_of(place)) if item.digest.startswith(digest)]
    rows = [
        (
            item.place,
            str(item.files),
            human_bytes(item.bytes),
            "" if item.rows is None else str(item.rows),
            item.digest[:12] or "no list",
            _state(item),
        )
        for item in sets
    ]
    text = table(rows, ("PLACE", "FILES", "SIZE", "SAMPLES", "DIGEST", ""))
    answer(
        as_json, "data-list", {"sets": [_json(item) for item in sets]}, text or "nothing is there"
    )
    return ExitCode.DONE if sets else ExitCode.FAILED


def _state(described: Described) -> str:
    if described.incomplete:
        return "incomplete"
    return f"{len(described.missing)} missing" if described.missing else ""


def _json(described: Described) -> dict[str, Any]:
    return {name: value for name, value in vars(described).items() if name != "shards"}


@data.command(short_help="Show shards, samples and digest of a data set.")
@declared
def describe(
    place: str = argument(metavar="PLACE"),
    write: bool = option("--write", "Read all files, and rewrite data.json."),
    as_json: bool = JSON,
) -> int:
    """Show what is in a data set, by its data.json: shards, samples, sizes and digests.

    The set's digest is the sha256 of what `sha256sum` prints for its files, sorted by name.

    \b
    fairlead data describe s3://lab/hep
    fairlead data describe --write shards
    """
    where = place_of(place)
    if write:
        with _moving("read", as_json) as moving:
            described = dataset.list_anew(where, _rows(where), moving)
    else:
        described = dataset.described(where)
    lines = [
        f"place    {described.place}",
        f"files    {described.files}, {human_bytes(described.bytes)}",
        f"samples  {'not counted' if described.rows is None else described.rows}",
        f"digest   {described.digest or 'no data.json: fairlead data describe --write'}",
    ]
    lines += [f"state    {state}"] if (state := _state(described)) else []
    if described.shards:
        rows = [
            (
                file.name,
                "" if file.rows is None else str(file.rows),
                human_bytes(file.bytes),
                file.sha256[:12],
            )
            for file in described.shards[:_SHOWN]
        ]
        lines += ["", table(rows, ("FILE", "SAMPLES", "SIZE", "SHA256"))]
        more = len(described.shards) - _SHOWN
        lines += [f"and {more} more"] if more > 0 else []
    lines += [f"missing, or of another size: {name}" for name in described.missing[:_SHOWN]]
    if described.digest:
        lines += [f"not listed: {name}" for name in described.unlisted[:_SHOWN]]
    answer(
        as_json, "data-describe", {**_json(described), "shards": described.shards}, "\n".join(lines)
    )
    return ExitCode.FAILED if described.missing or described.incomplete else ExitCode.DONE


def _rows(place: Place) -> dict[str, int]:
    """Samples of each file of a folder that the bundled models could read; none where they could not."""
    if not isinstance(place, Folder):
        return {}
    from fairlead.base import data_list
    from fairlead.ml.data.manifest import list_folder

    try:
        list_folder(place.top)
    except (FairleadError, ModuleNotFoundError):
        return {}  # another kind of files, whose samples nobody here can count
    known = data_list.read_list(place.top) or {}
    return {name: file.rows for name, file in known.items() if file.rows is not None}


@data.command("pack", short_help="Pack many small files into shards or one image.")
@declared
def pack_files(
    folder: Path = argument(metavar="DIRECTORY", type=FOLDER_HERE),
    out: Path = argument(metavar="OUT", type=PATH),
    form: str = option(
        "--format",
        "Tar shards, or one image.",
        type=click.Choice(["tar", "squashfs"]),
        default="tar",
    ),
    shard_size: str = option("--shard-size SIZE", "About how large a shard is.", default="256MB"),
    shuffle: int | None = option("--shuffle SEED", "Draw the order of samples; sorted otherwise."),
    as_json: bool = JSON,
) -> None:
    """Pack the files of DIRECTORY into OUT: shared file systems are slow with many small ones.

    Shards are tar files as WebDataset reads them: files that differ only in their suffix are one sample. OUT is a new folder,
    with a data.json. A squashfs image is one file, which `fairlead run --mount OUT:/data` mounts. The same files give the
    same bytes.

    \b
    fairlead data pack photos shards --shard-size 1GB
    fairlead data pack --format squashfs photos photos.squashfs
    """
    with _moving("pack", as_json) as moving:
        if form == "squashfs":
            count, what = pack.pack_squashfs(folder, out.absolute(), moving), "files"
        else:
            try:
                size = bytes_of(shard_size)
            except ValueError as exc:
                raise click.UsageError(f"--shard-size: {exc}") from None
            count, what = pack.pack_shards(folder, out.absolute(), size, shuffle, moving), "shards"
    answer(
        as_json,
        "data-pack",
        {"out": out.absolute(), "format": form, what: count},
        f"{out}: {count} {what}",
    )


@data.command("verify", short_help="Read a data set and compare it with its list.")
@declared
def verify_set(place: str = argument(metavar="PLACE"), as_json: bool = JSON) -> int:
    """Read all of a data set, and compare it with its data.json. Exits with 1 if something differs.

    \b
    fairlead data verify s3://lab/hep
    """
    with _moving("read", as_json) as moving:
        result = dataset.verified(place_of(place), moving)
    described = result.described
    lines = [f"differs: {name}" for name in result.wrong]
    lines += [f"missing, or of another size: {name}" for name in described.missing]
    lines += [f"not listed: {name}" for name in described.unlisted]
    lines += (
        ["incomplete: it is being written, or that was interrupted"] if described.incomplete else []
    )
    text = (
        "\n".join(lines)
        or f"{described.files} files, {human_bytes(described.bytes)}: as listed, {described.digest}"
    )
    values = {**_json(described), "wrong": result.wrong, "holds": result.holds}
    answer(as_json, "data-verify", values, text)
    return ExitCode.DONE if result.holds else ExitCode.FAILED


@dataclass(frozen=True, kw_only=True)
class SyncRules:
    """What a sync may do."""

    both: bool = option("--both", "Changes of DESTINATION come to SOURCE, too.")
    delete: bool = option("--delete", "What was removed on one side is removed on the other.")
    prefer: str = option(
        "--prefer",
        "Which side wins a conflict.",
        type=click.Choice([p.value for p in Prefer]),
        default="none",
    )
    bandwidth: int = BANDWIDTH

    @property
    def given(self) -> Rules:
        return Rules(self.both, self.delete, Prefer(self.prefer))


@data.command("sync", short_help="Make two places the same.")
@declared
def sync_places(
    source: str,
    destination: str,
    rules: SyncRules,
    dry_run: bool = option("--dry-run", "Print what would be copied, and copy nothing."),
    as_json: bool = JSON,
) -> None:
    """Copy what is new or changed from SOURCE to DESTINATION; at least one is in an object store.

    What changed on both sides since the last sync is a conflict, and nothing is copied then. Without --delete nothing is
    removed. An interrupted sync goes on where it stopped.

    \b
    fairlead data sync shards s3://lab/photos
    fairlead data sync s3://lab/photos /scratch/photos
    fairlead data sync --both --delete notes s3://lab/notes
    """
    left, other = place_of(source, new=rules.both), place_of(destination, new=True)
    if isinstance(left, Folder) and isinstance(other, Folder):
        raise fail("data-sync-folders", place=f"{source} {destination}")
    with _moving("sync", as_json) as moving:
        done = sync.sync(
            left, other, rules.given, dry_run=dry_run, rate=rules.bandwidth, on_bytes=moving
        )
    what = done.plan
    named = [
        ("copy to destination", what.there),
        ("copy to source", what.back),
        ("remove at destination", what.gone_there),
        ("remove at source", what.gone_here),
    ]
    lines = [f"{title}: {name}" for title, names in named for name in names] if dry_run else []
    counts = ", ".join(f"{title}: {len(names)}" for title, names in named if names)
    lines += [f"{counts or 'nothing to do'}; the same: {len(what.same)}"]
    if done.left_out:
        few = ", ".join(done.left_out[:_SHOWN])
        lines += [f"left out, neither files nor folders: {len(done.left_out)}: {few}"]
    values = {**vars(what), "bytes": done.moved, "dry_run": dry_run, "left_out": done.left_out}
    answer(as_json, "data-sync", values, "\n".join(lines))


@data.command("share", short_help="Give others access for a time, or by name.")
@declared
def share_place(
    url: str = argument(metavar="URL"),
    seconds: str = option("--for TIME", "How long links work, e.g. 12h or 7d.", default="1d"),
    users: tuple[str, ...] = option(
        "--with PRINCIPAL",
        "Instead of links: let this user or group read, by the bucket's policy. Repeatable.",
    ),
    revoke: bool = option("--revoke", "Take back what --with has given."),
    output: Path | None = option("-o --output", "Write the links to this file.", type=FILE),
    as_json: bool = JSON,
) -> None:
    """Give others access to a data set: a link to each file that works for a time, or a policy.

    Anyone with a link can read the file until it expires; it cannot be taken back. With -o, links go to a file that only you
    can read. A policy lasts until --revoke; not every store has policies.

    \b
    fairlead data share s3://lab/photos/data.json --for 12h
    fairlead data share s3://lab/photos --for 3d -o links.txt
    fairlead data share s3://lab/photos --with arn:aws:iam::123456789012:role/group
    """
    place = Prefix(open_store(parse(url)))
    if users or revoke:
        if revoke:
            changed = share.forbid(place)
        else:
            share.allow(place, users)
            changed = True
        text = f"the policy of {place.title} is changed" if changed else "nobody had access by it"
        answer(
            as_json, "data-share", {"place": place.title, "with": users, "revoked": revoke}, text
        )
        return
    links = share.links(place, _time(seconds))
    if output:
        with atomic_write(output, "w", permissions=0o600) as stream:
            stream.writelines(f"{link}\n" for link in links.values())
        say(f"{output}: {len(links)} links")
        links = {}
    if as_json:
        print_json("data-share", {"place": place.title, "links": links, "output": output})
    else:
        click.echo("\n".join(links.values()))


def _time(text: str) -> int:
    number, unit = text[:-1], text[-1:]
    if unit not in _UNITS or not number.isdigit() or not int(number):
        raise click.UsageError(f"--for {text}: write e.g. 30m, 12h or 7d")
    seconds = int(number) * _UNITS[unit]
    if seconds > share.LONGEST_S:
        raise click.UsageError(f"--for {text}: links work for 7 days at most")
    return seconds


@data.command("cache", short_help="Show or shrink what is kept on this node.")
@declared
def node_cache(
    storage: Path = option(
        "--in DIRECTORY",
        "The node's storage, as --stage-to of the run.",
        default=Path("/tmp"),
        type=FOLDER_HERE,
    ),
    limit: int | None = option(
        "--limit SIZE", "Remove the least recently used files beyond this.", type=SIZE
    ),
    clear: bool = option("--clear", "Remove all, interrupted downloads too."),
    as_json: bool = JSON,
) -> None:
    """Show what --stage-cache has kept on this node: files by sha256, which all runs share.

    FAIRLEAD_DATA_CACHE names another folder, which users can share. A run that uses a file keeps it: removing is safe.

    \b
    fairlead data cache --in /scratch
    fairlead data cache --in /scratch --limit 500GB
    """
    cache = Cache(folder_in(storage))
    gone = []
    if (clear or limit is not None) and cache.top.is_dir():
        gone = cache.shrink(0 if clear else limit)
        cache.clear_if_empty()
    kept, partial = (
        cache.kept(),
        sum(p.stat().st_size for p in cache.partials() if p.is_file()),
    )
    rows = [(entry.sha256[:16], human_bytes(entry.bytes)) for entry in reversed(kept)][:_SHOWN]
    lines = [table(rows, ("SHA256", "SIZE"))] if rows else []
    size = human_bytes(sum(entry.bytes for entry in kept))
    lines += [f"{cache.top}: {len(kept)} files, {size}"]
    lines += [f"interrupted downloads: {human_bytes(partial)}"] if partial else []
    lines += (
        [f"removed: {len(gone)} files, {human_bytes(sum(entry.bytes for entry in gone))}"]
        if gone
        else []
    )
    values = {"folder": cache.top, "files": kept, "partial_bytes": partial, "removed": gone}
    answer(as_json, "data-cache", values, "\n".join(lines))
