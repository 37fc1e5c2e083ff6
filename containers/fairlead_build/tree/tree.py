"""The tree of an image: its Debian part, wheels, sources and files, as one squashfs without our wheel.

The Debian part is a squashfs by itself (``debian.py``), so changing a wheel does not unpack it from
its packages again. Wheels are installed over a copy of it (``sandbox.py``, ``in_sandbox.py``); only
what they changed is packed, and laid before the Debian part in one tar stream. ``payload.py`` adds
our wheel.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairlead.base.serde import from_json
from fairlead_build.base import tar
from fairlead_build.base.digest import json_digest, sha256_of
from fairlead_build.base.proc import clean_environment, piped
from fairlead_build.base.progress_protocol import Phases, stdout_of
from fairlead_build.cache.store import scratch_parent, workspace
from fairlead_build.recipe.load import LoadedRecipe
from fairlead_build.recipe.lock import Lock
from fairlead_build.squashfs.squash import Compression, Sink, squashing, unsquash_argv
from fairlead_build.squashfs.tree_stream import Recorder, tar_members
from fairlead_build.tree import sources
from fairlead_build.tree.debian import INSIDE, debian_key, debian_tree
from fairlead_build.tree.job import TreeJob
from fairlead_build.tree.record import Contents, Files, TreeRecord, publish_tree
from fairlead_build.tree.sandbox import sandbox
from fairlead_build.tree.wheel_staging import ROLES, Built, plan_of, request, stage_wheels

_FOUND, _FOUND_WHOLE = "found.json", "found-whole.json"
_HOW = ("../base/jail.py", "sandbox.py", "tree.py", "record.py", "in_sandbox.py")


def compression_of(lock: Lock) -> Compression:
    return Compression(lock.inputs.compressor, lock.inputs.level, lock.source_date_epoch)


def tree_key(loaded: LoadedRecipe, lock: Lock) -> str:
    """The cache key of a tree: a digest of everything its bytes depend on."""
    package = Path(__file__).parent
    inputs = {
        "debian": debian_key(lock.deb, lock),
        "wheels": sorted([w.role, w.sha256] for w in lock.wheel if w.role in ROLES),
        "sources": sources.keys(loaded, lock, loaded.sources),
        "epoch": lock.source_date_epoch,
        "compression": [lock.inputs.compressor, lock.inputs.level],
        "prefixes": plan_of(loaded),
        "files": [[f.target, f.mode, f.sha256] for f in loaded.files],
        "how": [
            sha256_of(p) for p in (*sorted(INSIDE.glob("*.py")), *(package / name for name in _HOW))
        ],
    }
    return json_digest(inputs)


def unpacked_bytes(lock: Lock) -> int:
    """A generous guess of the room that unpacking takes."""
    return 5 * lock.download_bytes + (200 << 20)


def build_tree(job: TreeJob, key: str, over: Files | None = None) -> TreeRecord:
    """Makes the squashfs of the tree and its record, from the store alone.

    Args:
        over: what the image will have over the tree, to be looked at with it.
    Raises:
        FairleadError: a tool failed, or there is no room.
    """
    loaded, lock, cache = job.loaded, job.lock, job.cache
    below = debian_tree(lock.deb, job)
    built = sources.build_sources(job, loaded.sources)
    with (
        workspace(scratch_parent(unpacked_bytes(lock)), "fairlead-", wait=False) as scratch,
        workspace(cache.root / "work", "tree-") as work,
    ):
        wheels = [w for w in lock.wheel if w.role in ROLES]
        with job.progress.stage("check wheels", sum(w.size for w in wheels) or None, "B") as stage:
            shown = stage_wheels(wheels, built, job, scratch, stage)
        _stage_files(loaded, scratch / "files")
        if over is not None:
            _stage_over(over, scratch / "over")
        made = work / "tree.squashfs"
        with squashing(made, compression_of(lock), job.again, cache) as sink, Recorder(sink) as tee:
            _assemble(job, below, built, shown, scratch, tee)
        contents, whole = (_read_contents(scratch / name) for name in (_FOUND, _FOUND_WHOLE))
        return replace(publish_tree(made, cache, key, tee.tree, contents), whole=whole)


def _read_contents(path: Path) -> Contents | None:
    return from_json(Contents, json.loads(path.read_text("utf-8"))) if path.exists() else None


def _stage_files(loaded: LoadedRecipe, files: Path) -> None:
    files.mkdir()
    for file in loaded.files:
        target = files / file.target.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.source.read_bytes())
        target.chmod(file.mode)
    for folder in (files, *(p for p in files.rglob("*") if p.is_dir())):
        folder.chmod(0o755)  # whatever the umask


def _stage_over(over: Files, folder: Path) -> None:
    folder.mkdir()
    for name, (body, mode) in over.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(body)
        target.chmod(mode)


def _assemble(
    job: TreeJob,
    below: Path,
    built: Sequence[Built],
    wheels: Mapping[str, Path],
    scratch: Path,
    sink: Sink,
) -> None:
    """Passes on what the wheels changed in the Debian part, then the rest of that part."""
    asked = {
        **request(job, below, scratch, "stage", "files", wheels=wheels),
        "found": str(scratch / _FOUND),
        "found_whole": str(scratch / _FOUND_WHOLE),
        "over": str(scratch / "over") if (scratch / "over").is_dir() else "",
        "python": job.loaded.recipe.python is not None,
        "overlays": [b.staged(scratch / "stage") for b in built if b.wheel is None],
    }
    phases = Phases(job.progress, scratch.parent)
    with phases.open():
        with sandbox("fairlead_build.tree.in_sandbox", asked, scratch) as process:
            stream = stdout_of(process, phases.feed)
            head, rest = _head(stream)
            if head:  # else it has failed, and what it said belongs to its own last stage
                # A tar has a header of 512 bytes a file and rounds up; a squashfs holds about a third.
                size = head["bytes"] + 1024 * head["files"] + 3 * below.stat().st_size
                phases.enter("squash", size, "B")
            for chunk in itertools.chain((rest,), stream):
                phases.advance(len(chunk))
                sink.write(chunk)
            if code := process.wait():
                doing, remedy = "install the wheels", job.again
                if any(line.startswith("ERROR: ") for line in phases.tail):  # pip refuses one
                    remedy = (
                        f"leave it out of packages.pip or pin another version, then `{job.relock}`"
                    )
                raise phases.failed(["install.py"], code, doing, remedy)
        _pass_on(below, frozenset(head["replaced"]), job, sink, phases)


def _head(stream: Iterator[bytes]) -> tuple[dict[str, Any], bytes]:
    """The line of JSON that a stream begins with, and what of the rest has come with it."""
    received = b""
    for chunk in stream:
        received += chunk
        line, newline, rest = received.partition(b"\n")
        if newline:
            return json.loads(line), rest
    return {}, b""  # it has failed; its exit code says so


def _pass_on(
    below: Path, replaced: frozenset[str], job: TreeJob, sink: Sink, phases: Phases
) -> None:
    """Writes the Debian part to ``sink`` but for what was ``replaced``, and the end of the tar."""

    def write_on(chunk: bytes) -> None:
        phases.advance(len(chunk))
        sink.write(chunk)

    argv, remedy = unsquash_argv(below, job.cache), f"rm {below} && {job.again}"
    with piped(
        argv, doing="read the Debian part", remedy=remedy, env=clean_environment()
    ) as stream:
        if not replaced:
            while chunk := stream.read(tar.CHUNK):
                write_on(chunk)
            return
        for info, content in tar_members(stream):
            if info.name in replaced:
                continue
            info.name = "./" if info.name == "." else f"./{info.name}"
            info.pax_headers = {}
            for chunk in tar.member(info, content) if content else (tar.header(info),):
                write_on(chunk)
        write_on(tar.END)
