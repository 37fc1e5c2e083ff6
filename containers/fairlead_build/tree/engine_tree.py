"""The tree of an image that starts from a ``docker://`` base, made by Docker or Podman.

The engine gets the locked base out of our own store, so it needs neither a registry nor a login;
the locked .debs and wheels come in the build's context, and the build has no network. What it makes
is exported, put in order (root's files, sorted, one time for all) and squashed like any other tree.
"""

from __future__ import annotations

import io
import os
import tarfile
import uuid
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fairlead.base.errors import FairleadError, fail
from fairlead.base.progress import Stage
from fairlead.image.tree_digest import Tree
from fairlead_build.base import tar
from fairlead_build.base.digest import json_digest, sha256_of
from fairlead_build.cache.store import copy_blob, scratch_parent, workspace
from fairlead_build.engines.socket import Engine, asking, connected, refused
from fairlead_build.engines.store import load, name_of
from fairlead_build.formats.convert import read_configuration
from fairlead_build.recipe.load import LoadedRecipe
from fairlead_build.recipe.lock import Lock
from fairlead_build.registry.layout import read_layout
from fairlead_build.registry.reference import Reference
from fairlead_build.squashfs.oci_layers import LayerFile, read_layers, write_tar
from fairlead_build.squashfs.squash import squashing
from fairlead_build.squashfs.tree_stream import Recorder
from fairlead_build.tools import tool_tree
from fairlead_build.tree import steps
from fairlead_build.tree.base_image import base_layout
from fairlead_build.tree.job import TreeJob
from fairlead_build.tree.record import TreeRecord, publish_tree
from fairlead_build.tree.tree import compression_of

_BYTECODE = Path(__file__).with_name("inside") / "bytecode.py"
# What engines mount over or leave behind; the content must not be this machine's.
_FOREIGN = ("dev", ".dockerenv", "run/.containerenv", "etc/mtab", "etc/localtime")
_PLAIN = {
    "etc/hostname": b"",
    "etc/hosts": b"127.0.0.1 localhost\n::1 localhost\n",
    "etc/machine-id": b"",
    "etc/resolv.conf": b"",
}
# What a base that fairlead or Apptainer made holds; an image's own is laid in later.
_OURS = (".fairlead", ".singularity.d")
_REASON_CHARACTERS = 280
# Traces of when and where a package was configured.
_TRACES = (
    "/var/lib/dpkg/*-old /var/lib/dpkg/lock* /var/cache/debconf/*-old /etc/*- /etc/.pwd.lock "
    "/var/cache/ldconfig/* /var/lib/systemd/random-seed /tmp/* /var/tmp/* /root/.cache"
)


def tree_key(loaded: LoadedRecipe, lock: Lock) -> str:
    """The cache key of a tree: a digest of everything its bytes depend on."""
    inputs = {
        "base": lock.base.digest if lock.base else "",
        "script": _script(loaded, lock),
        "packages": sorted(d.sha256 for d in lock.deb),
        "wheels": sorted([w.role, w.sha256] for w in lock.wheel),
        "epoch": lock.source_date_epoch,
        "compression": [lock.inputs.compressor, lock.inputs.level],
        "files": [[f.target, f.mode, f.sha256] for f in loaded.files],
        "tools": tool_tree.identity(lock.architecture),
        "how": [sha256_of(p) for p in (_BYTECODE, Path(__file__))],
    }
    return json_digest(inputs)


def base_environment(job: TreeJob) -> Mapping[str, str]:
    """The variables of the locked base; none without one.

    Raises:
        FairleadError: it is not cached, and cannot be fetched.
    """
    if job.lock.base is None:
        return {}
    layout = _layout(job)
    return read_configuration(layout, read_layout(layout)).env


def build_tree(job: TreeJob, key: str) -> TreeRecord:
    """Makes the squashfs of the tree and its record, from the store alone.

    Raises:
        FairleadError: no engine listens, it refuses or breaks off, the base is gone, or there is no
            room.
    """
    loaded, lock, cache, progress = job.loaded, job.lock, job.cache, job.progress
    if loaded.sources:
        raise fail("base-sources", loaded=loaded, source=loaded.sources[0].source)
    layout = _layout(job)
    packed = sum(item.size for item in read_layout(layout).layers)
    need = 4 * packed + 6 * lock.download_bytes + (200 << 20)
    with (
        connected(job.again) as engine,
        workspace(scratch_parent(need), "fairlead-") as scratch,
        workspace(cache.root / "work", "tree-") as work,
    ):
        tool_tree.unpacked(cache, progress)
        assert lock.base is not None
        hexadecimal = lock.base.digest.partition(":")[2]
        base = Reference("docker", "localhost", "fairlead-base", hexadecimal[:32])
        load(engine, layout, base, job.again, progress)
        context = scratch / "context.tar"
        with progress.stage("check and stage packages", lock.download_bytes, "B") as stage:
            _write_context(job, name_of(base), scratch, context, stage)
        exported = scratch / "root.tar"
        with _built(engine, context, job) as image:
            context.unlink()
            _export(engine, image, exported, job)
        made = work / "tree.squashfs"
        entries = _squash(exported, made, job)
        return publish_tree(made, cache, key, entries)


def _layout(job: TreeJob) -> Path:
    base = job.lock.base
    assert base is not None
    return base_layout(base.image, base.digest, job.cache, job.progress, job.again, job.relock)


def _script(loaded: LoadedRecipe, lock: Lock) -> str:
    """What is done in the container, as a shell script; the same steps as a rendered recipe's."""
    lines = [
        f"export SOURCE_DATE_EPOCH={lock.source_date_epoch} LC_ALL=C HOME=/nonexistent",
        # dpkg finds its helpers there, whatever the base's own PATH is.
        "export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        *steps.install_debs(lock),
        *steps.install_wheels(loaded, lock),
        *steps.lay_files(loaded.files),
    ]
    python = loaded.recipe.python
    if python is not None:
        # A base that fairlead made has a copy, which is replaced.
        lines.append(
            f"rm -rf {python.site}/fairlead {python.site}/fairlead-*.dist-info {python.prefix}/bin/fairlead"
        )
        folders = [f"/usr/lib/python{python.version}", "/usr/lib/python3", python.prefix]
        paths = " ".join(filter(None, [*folders, loaded.recipe.mpi_prefix]))
        lines += [
            # All of them: those of the base and its packages hold time stamps.
            f"find {paths} -name __pycache__ -prune -exec rm -rf {{}} +",
            f"{python.prefix}/bin/python3 -I {steps.WORK}/bytecode.py {paths}",
        ]
    lines += [*steps.clean(), f"rm -rf {_TRACES}"]
    # A function is read whole before it runs: its last steps remove the file it is in.
    body = "\n".join(lines)
    return f"set -eu\nmain() {{\n{body}\n}}\nmain\n"


def _write_context(job: TreeJob, base: str, scratch: Path, target: Path, stage: Stage) -> None:
    loaded, lock = job.loaded, job.lock
    recipe = (
        f"FROM {base}\nUSER 0:0\nWORKDIR /\nCOPY files/ {steps.WORK}/\n"
        f'RUN ["/bin/sh", "{steps.WORK}/build.sh"]\n'
    )
    with tarfile.open(target, "w", format=tarfile.GNU_FORMAT) as archive:
        _add(archive, "Containerfile", recipe.encode())
        _add(archive, "files/build.sh", _script(loaded, lock).encode())
        _add(archive, "files/bytecode.py", _BYTECODE.read_bytes())
        blobs = [(f"debs/{d.file}", d.sha256, d.size) for d in lock.deb]
        for role in steps.ROLES:
            wheels = [w for w in lock.wheel if w.role == role]
            _add(archive, f"files/{role}.txt", "".join(f"{w.pin}\n" for w in wheels).encode())
            blobs += [(f"{role}/{w.file}", w.sha256, w.size) for w in wheels]
        checked = scratch / "blob"
        for name, sha256, size in blobs:
            copy_blob(job.cache, sha256, checked)
            with checked.open("rb") as stream:
                archive.addfile(_info(f"files/{name}", size), stream)
            stage.advance(size)
        checked.unlink(missing_ok=True)
        for file in loaded.files:
            _add(archive, f"files/lay/{file.target.lstrip('/')}", file.source.read_bytes())


def _add(archive: tarfile.TarFile, name: str, body: bytes) -> None:
    archive.addfile(_info(name, len(body)), io.BytesIO(body))


def _info(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size = size
    return info


@contextmanager
def _built(engine: Engine, context: Path, job: TreeJob) -> Iterator[str]:
    """The name of the image that the engine makes of ``context``; gone after the block."""
    name = f"localhost/fairlead-build:{os.getpid()}-{uuid.uuid4().hex[:12]}"
    client = engine.client
    try:
        with (
            job.progress.stage(f"install over the base by {engine.name}") as stage,
            context.open("rb") as stream,
            asking(engine, "build the image", job.again),
        ):
            options = {"network_mode": "none", "nocache": True, "rm": True, "forcerm": True}
            options |= {"custom_context": True, "dockerfile": "Containerfile", "tag": name}
            lines = client.build(fileobj=stream, decode=True, **options)
            _follow(engine, lines, job.again, stage)
        yield name
    finally:
        _forget(client.remove_image, name)


def _follow(engine: Engine, lines: Any, again: str, stage: Stage) -> None:
    """Passes on what the engine reports of its build.

    Raises:
        FairleadError: it failed; with its last messages.
    """
    tail: deque[str] = deque(maxlen=8)
    for line in lines:
        if "error" in line:
            # The reason stands at the end, and a message shows the beginning.
            reason = "; ".join((*tail, str(line["error"])))
            raise refused(engine, "build the image", reason[-_REASON_CHARACTERS:], again)
        for words in str(line.get("stream") or line.get("status") or "").splitlines():
            if words.strip():
                tail.append(words.strip())
                stage.note(words.strip()[:60])


def _export(engine: Engine, image: str, target: Path, job: TreeJob) -> None:
    client = engine.client
    with (
        job.progress.stage(f"take the tree out of {engine.name}", unit="B") as stage,
        asking(engine, "export the image", job.again),
        target.open("wb") as out,
    ):
        made = client.create_container(image, command=["/bin/true"])["Id"]
        try:
            for chunk in client.export(made):
                out.write(chunk)
                stage.advance(len(chunk))
        finally:
            _forget(client.remove_container, made)


def _forget(remove: Any, name: str) -> None:
    """Removes what is left in the engine; an engine that is gone was reported already."""
    import docker
    import requests

    with suppress(docker.errors.DockerException, requests.RequestException, OSError):
        remove(name, force=True)


def _squash(exported: Path, made: Path, job: TreeJob) -> Tree:
    """The export as a squashfs whose bytes depend on neither engine, machine nor time."""
    cache, how = job.cache, compression_of(job.lock)
    try:
        merged = read_layers([LayerFile(exported)], cache)
    except FairleadError as exc:
        damage = exc.findings[0]
        raise fail("engine-broke-off-export", damage=damage, again=job.again) from None
    for path in (*_FOREIGN, *_PLAIN, *_OURS):
        merged.tree.remove(path)
    for path, inode in merged.tree.walk():
        inode.mode &= ~0o6000  # as in every tree: containers run without set-user-id
        if inode.kind == "dir" and path in ("proc", "sys", "run"):
            inode.mode = 0o755
    for name in ("proc", "sys"):  # what is in them is mounted
        if (node := merged.tree.root.children.get(name)) is not None:
            node.children.clear()
    with (
        job.progress.stage("squash", merged.bytes, "B") as stage,
        squashing(made, how, job.again, cache) as sink,
        Recorder(sink) as tee,
    ):
        for path, body in _PLAIN.items():
            tee.write(tar.small_file(path, body, 0o644, how.epoch))
        write_tar(merged, tee, epoch=how.epoch, in_order=True, cache=cache, advance=stage.advance)
    return tee.tree
