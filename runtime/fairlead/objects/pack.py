"""Many small files as few large ones: shards, tar files as WebDataset reads them, or one squashfs image.

The same files give the same bytes: sorted, without times and owners. Files whose names are equal up to the first dot after
the last slash are one sample, and stay together.
"""

from __future__ import annotations

import io
import os
import random
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairlead.base import data_list
from fairlead.base.data_list import ListedFile
from fairlead.base.errors import fail
from fairlead.base.paths import atomic_folder

_SPLITS = ("train", "training", "val", "validation", "test")
_CHUNK = 1 << 20
OnBytes = Callable[[int], None]


@dataclass(frozen=True)
class Sample:
    """Files that belong together, by their names below the folder."""

    key: str
    files: tuple[str, ...]
    bytes: int


def samples_of(folder: Path) -> tuple[Sample, ...]:
    """The samples of a folder, sorted.

    Raises:
        FairleadError: exit code 2; nothing is there, or something that is neither a file nor a folder.
    """
    groups: dict[str, list[str]] = {}
    special: list[str] = []
    for above, folders, names in os.walk(folder):
        folders.sort()
        below = os.path.relpath(above, folder)
        special += [
            os.path.join(below, f) for f in folders if os.path.islink(os.path.join(above, f))
        ]
        for name in sorted(names):
            path = name if below == "." else f"{below}/{name}"
            if os.path.islink(folder / path) or not os.path.isfile(folder / path):
                special.append(path)
            elif path != data_list.NAME:
                stem = name[: name.index(".", 1)] if "." in name[1:] else name
                groups.setdefault(f"{os.path.dirname(path)}/{stem}".lstrip("/"), []).append(path)
    if special:
        few = ", ".join(special[:5])
        raise fail("data-pack-special", folder=folder, count=len(special), few=few)
    if not groups:
        raise fail("data-place", place=folder)
    return tuple(
        Sample(key, tuple(names), sum((folder / name).stat().st_size for name in names))
        for key, names in sorted(groups.items())
    )


def pack_shards(
    folder: Path,
    out: Path,
    shard_bytes: int,
    seed: int | None = None,
    on_bytes: OnBytes = lambda count: None,
) -> int:
    """Writes the samples of a folder as shards, with their list; how many.

    Folders ``train``, ``val`` and ``test`` become shards of these names, others ``data-NNNNNN.tar``.

    Args:
        out: a new folder.
        shard_bytes: about how large a shard is.
        seed: samples are in an order drawn by it; sorted without one.
    Raises:
        FairleadError: as :func:`samples_of`; ``out`` exists.
        OSError: a file cannot be read, or there is no space; nothing is left.
    """
    samples = list(samples_of(folder))
    if os.path.lexists(out):
        raise fail("data-pack-exists", out=out)
    by_split: dict[str, list[Sample]] = {}
    for sample in samples:
        first = sample.key.partition("/")[0]
        by_split.setdefault(first if first in _SPLITS else "data", []).append(sample)
    entries: list[ListedFile] = []
    with atomic_folder(out) as made:
        for split, those in sorted(by_split.items()):
            if seed is not None:
                random.Random(seed).shuffle(those)
            prefix = f"{split}/" if split != "data" else ""
            for n, shard in enumerate(_shards(those, shard_bytes)):
                path = made / f"{split}-{n:06d}.tar"
                with path.open("wb") as stream:
                    _write_tar(stream, folder, shard, prefix, on_bytes)
                entries.append(data_list.listed(made, path, len(shard)))
        data_list.write_list(made, entries)
    return len(entries)


def _shards(samples: Sequence[Sample], most: int) -> Iterator[list[Sample]]:
    shard: list[Sample] = []
    size = 0
    for sample in samples:
        if shard and size + sample.bytes > most:
            yield shard
            shard, size = [], 0
        shard.append(sample)
        size += sample.bytes
    if shard:
        yield shard


def _write_tar(
    stream: io.BufferedIOBase | object,
    folder: Path,
    samples: Sequence[Sample],
    prefix: str,
    on_bytes: OnBytes,
    last: Callable[[], bytes] | None = None,
) -> None:
    """Writes samples; behind them the list of files that ``last`` gives."""
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive:  # type: ignore[call-overload]
        for sample in samples:
            for name in sample.files:
                path = folder / name
                entry = tarfile.TarInfo(name.removeprefix(prefix))
                entry.size, entry.mode = path.stat().st_size, 0o644
                with path.open("rb") as content:
                    archive.addfile(entry, content)
                on_bytes(entry.size)
        if last:
            text = last()
            entry = tarfile.TarInfo(data_list.NAME)
            entry.size, entry.mode = len(text), 0o644
            archive.addfile(entry, io.BytesIO(text))


def pack_squashfs(folder: Path, out: Path, on_bytes: OnBytes = lambda count: None) -> int:
    """Writes a folder as one squashfs image, with the list of its files in it; how many files.

    Raises:
        FairleadError: as :func:`samples_of`; ``out`` exists; the tool is missing or fails.
    """
    samples = samples_of(folder)
    if os.path.lexists(out):
        raise fail("data-pack-exists", out=out)
    if (tool := shutil.which("tar2sqfs")) is None:
        raise fail("data-pack-tool", tool="tar2sqfs", package="squashfs-tools-ng")
    names = [name for sample in samples for name in sample.files]
    own = folder / data_list.NAME
    known = data_list.read_list(folder) if own.is_file() else None
    rows = {name: file.rows for name, file in (known or {}).items()}

    def listed() -> bytes:
        entries = []
        for name in names:
            path = folder / name
            size, sha256 = path.stat().st_size, data_list.sha256(path)
            entries.append(ListedFile(name, rows.get(name), size, sha256))
        return data_list.text_of(entries).encode()

    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    words = [tool, "--quiet", "--force", "--no-xattr", "--defaults", "uid=0,gid=0,mtime=0"]
    words += ["--compressor", "zstd", str(partial)]
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdin and process.stderr
            try:
                _write_tar(process.stdin, folder, samples, "", on_bytes, listed)
            except BrokenPipeError:
                pass  # its own words say why
            finally:
                process.stdin.close()
            errors = process.stderr.read().decode("utf-8", "replace")
            code = process.wait()
        if code:
            why = re.sub(r"\s+", " ", errors)[-300:] or f"exit code {code}"
            raise fail("data-pack-failed", tool="tar2sqfs", out=out, why=why)
        with partial.open("rb") as stream:
            os.fsync(stream.fileno())
        os.link(partial, out)
    except FileExistsError:
        raise fail("data-pack-exists", out=out) from None
    finally:
        partial.unlink(missing_ok=True)
    return len(names)
