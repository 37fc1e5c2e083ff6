"""Every reader of files and answers that others write: damaged and made-up ones give a result, or an error with all its
parts, and nothing is written meanwhile. ``READERS`` has a line for each; test_reading_functions.py finds those that miss.

Inputs that once ended otherwise are kept in ``tests/recorded/readers/NAME/`` and are read each time. `make test` tries
some tens for each reader; `make test-full` an hour of them, or the seconds in ``FAIRLEAD_FUZZ_S``.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import hashlib
import io
import json
import os
import random
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import h5py
import numpy as np
import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st
from tests.project.test_hostile_files import _WORDS, ROOT, damaged, judged
from tests.support import run_records
from tests.support.compiled import CALLS, MPICH, OPENS, compiled, packed
from tests.support.signed import PASSPHRASE, kept_key, make_layout
from tests.support.validated import demo, kept
from tests.unit.runtime.detect.test_capture import taken

from fairlead.base import bounded_json, nccl_log, nccl_verdict
from fairlead.base import data_list as listing
from fairlead.base.errors import FairleadError
from fairlead.base.python_imports import imports
from fairlead.base.serde import to_json
from fairlead.base.system import Machine
from fairlead.cli.inspect import _text as inspected_text
from fairlead.detect import capture
from fairlead.doctor import podman
from fairlead.doctor.world import World
from fairlead.elf.facts import ImageFacts
from fairlead.elf.loader import system_folders
from fairlead.elf.reader import NotElf, first_pointed_text, symbols
from fairlead.engines import registry
from fairlead.image import keys
from fairlead.image.budget import Budget
from fairlead.image.mount import RECORD, _damage, record_in
from fairlead.image.open import Image, _sound
from fairlead.image.packages import frameworks, installed
from fairlead.image.sbom import component, document
from fairlead.image.scan import scan_tree
from fairlead.image.tree_digest import tree_sha256
from fairlead.image.unpacking import unpacked_mpis
from fairlead.ml.data import tfrecord
from fairlead.ml.data.example import encode
from fairlead.ml.data.manifest import read_manifest
from fairlead.ml.data.shards import Rows
from fairlead.ml.data.tfrecord import Compression, Writer
from fairlead.ml.train import checkpoint
from fairlead.native.wire import Settings as WireSettings
from fairlead.objects import failures, share
from fairlead.objects.dataset import Prefix
from fairlead.objects.stores.s3 import S3
from fairlead.objects.url import parse as parse_url
from fairlead.perf.draw.tables import as_csv
from fairlead.perf.draw.validation_page import render
from fairlead.perf.judge import references
from fairlead.perf.projection import small_runs
from fairlead.perf.projection.fabrics import given as given_network
from fairlead.perf.projection.fitting import Target, fit
from fairlead.perf.records import documents, history
from fairlead.perf.records.validation import SCHEMA, SCHEMA_VERSION
from fairlead.proof.preload import read_records
from fairlead.proof.wire import Ended, Wire, side_of
from fairlead.record import folder as record_folder
from fairlead.record import model as run_model
from fairlead.record.crate import CRATE
from fairlead.record.statement import ENVELOPE, STATEMENT, envelope, statement
from fairlead.trace import parts as trace_parts
from fairlead.tune import artifacts, figures
from fairlead_build.distribution.pull import _check_platform
from fairlead_build.engines.store import _layers_of
from fairlead_build.formats.convert import _invocation, read_configuration
from fairlead_build.formats.wrapping import engine_files
from fairlead_build.recipe.lock import AptIndex
from fairlead_build.registry import auth
from fairlead_build.registry.layout import read_layout
from fairlead_build.registry.manifest import Descriptor, Manifest, read_document
from fairlead_build.registry.problems import server_message
from fairlead_build.registry.reference import parse_reference
from fairlead_build.registry.transport import _asked_wait, read_challenges, token_of
from fairlead_build.resolve import companions
from fairlead_build.resolve.apt_solve import _epoch
from fairlead_build.resolve.apt_sources import parse_deb822, parse_one_line
from fairlead_build.resolve.sources import _from_html, _from_json
from fairlead_build.squashfs import overlay
from fairlead_build.squashfs.oci_layers import LayerFile, read_files, read_layers, write_tar
from fairlead_build.squashfs.tree_stream import _layers, read_tree, tar_members
from fairlead_build.tree import source_wheels, unarchive
from fairlead_build.tree.wheel_staging import _unpacked

RECORDED = ROOT / "tests/recorded/readers"
HOUR_S = 3600.0


@dataclass(frozen=True)
class Reader:
    """One reader.

    Attributes:
        name: of its folder of recorded inputs.
        make: a whole input; takes an empty folder.
        read: reads an input, and makes of it what the product does; takes a folder, which ``put`` filled.
        put: the file's name in that folder.
        refuses: exceptions that the reader's callers expect, other than FairleadError.
        but: a part of the names of files that reading may write.
    """

    name: str
    make: Callable[[Path], bytes]
    read: Callable[[Path], object]
    put: str = "file.json"
    refuses: tuple[type[Exception], ...] = ()
    but: str = "\0"

    def try_one(self, folder: Path, raw: bytes) -> bool:
        """Whether ``raw`` was read; if not, it was refused properly."""
        (folder / self.put).parent.mkdir(parents=True, exist_ok=True)
        (folder / self.put).touch(0o600)  # as a private key has to be
        (folder / self.put).write_bytes(raw)

        def read() -> None:
            with contextlib.suppress(*self.refuses):
                self.read(folder)

        return judged(read, self.but)


# --- whole inputs -----------------------------------------------------------------------------------


def _text(value: Any) -> bytes:
    return json.dumps(to_json(value)).encode()


def _validation(folder: Path) -> bytes:
    few = demo(references=kept(), steps=3, repeats=3)
    return documents.text(few, SCHEMA, SCHEMA_VERSION).encode()


def _validation_of_two_counts(folder: Path) -> bytes:
    """Trained on 1 and on 64 ranks, on which allreduces were measured."""
    value = json.loads(_validation(folder))
    lines = value["measurements"]
    value["measurements"] = [m for m in lines if m["what"] != "train" or m["ranks"] in (1, 64)]
    return json.dumps(value).encode()


def _references(folder: Path) -> bytes:
    return documents.text(
        references.make(demo(steps=3, repeats=3)), references.SCHEMA, references.SCHEMA_VERSION
    ).encode()


def _small_runs(folder: Path) -> bytes:
    one = small_runs.SmallRun(1, 1, ((0.1, 0.2),), 4096, 8)
    two = small_runs.SmallRun(2, 1, ((0.1, 0.2),), 4096, 8, (0.01, 0.02))
    return _text(small_runs.small_runs_json((one, two)))


def _capture(folder: Path) -> bytes:
    capture.write(taken(), folder / "made.json")
    return (folder / "made.json").read_bytes()


def _checkpoint(folder: Path) -> bytes:
    arrays = [np.arange(6.0).reshape(2, 3), np.array(3, "<i8")]
    state = checkpoint.Checkpoint(4, {"model": "hepcnn"}, arrays, [arrays[:1]], {"loss": []})
    return checkpoint.write(folder, state).read_bytes()


def _record(folder: Path) -> bytes:
    wheels = {"wheel": {"numpy": "2.0"}, "deb": {"libc6": "2.41"}}
    return _text({"packages": wheels, "env": {"A": "b"}, "recipe": "app", "sbom": {"sha256": "0"}})


def _configuration(folder: Path) -> bytes:
    _manifest_of()  # which writes
    inner = {"Env": ["PATH=/bin"], "Cmd": ["sh"], "Entrypoint": ["/x"], "Labels": {"a": "b"}}
    root = {"type": "layers", "diff_ids": ["sha256:" + "0" * 64]}
    return _text({"architecture": "amd64", "os": "linux", "config": inner, "rootfs": root})


def _manifest(folder: Path) -> bytes:
    make_layout(folder / "made")
    return read_layout(folder / "made").data


def _hdf5(folder: Path) -> bytes:
    with h5py.File(folder / "made.h5", "w") as file:
        values = np.ones((4, 3, 8, 8), "f4")
        file.create_dataset("data", data=values, chunks=(2, 3, 8, 8), fletcher32=True)
        file.create_dataset("label", data=np.arange(4), chunks=(2,), compression="gzip")
    return (folder / "made.h5").read_bytes()


def _records(how: Compression) -> Callable[[Path], bytes]:
    def make(folder: Path) -> bytes:
        with (folder / "made").open("wb") as stream, Writer(stream, how) as out:
            for _ in range(3):
                x = np.arange(64, dtype="<i2").tobytes()
                out.write(encode({"x": x, "y": np.ones(4, np.float32)}))
        return (folder / "made").read_bytes()

    return make


def _list(folder: Path) -> bytes:
    listing.write_list(folder, [listing.ListedFile("train.h5", 4, 10, "0" * 64)])
    return (folder / listing.NAME).read_bytes()


def _run_record(folder: Path) -> bytes:
    document = {
        "schema": run_model.SCHEMA,
        "version": run_model.SCHEMA_VERSION,
        "fairlead": "0.1.0",
    }
    return _text({**document, **to_json(run_records.run_record())})


_TOKEN = b'{"token": "abc.def", "expires_in": 300, "issued_at": "2026-01-31T12:00:00Z"}'
_BUILT = b"Metadata-Version: 2.1\nName: app\nVersion: 1.0\nRequires-Dist: numpy>=2; python_version > '3'\n\nText\n"
_SARUS = b'{"hooksDir": "/opt/sarus/etc/hooks.d", "mksquashfsPath": "/usr/bin/mksquashfs", "centralizedRepositoryDir": "/c"}'


# --- what is done with them -------------------------------------------------------------------------


def _shown(folder: Path) -> None:
    validation = history.read(folder / "file.json")
    for text in (render(validation), as_csv(validation)):
        text.encode()


def _verified_record(folder: Path) -> None:
    """As `verify` reads one, with a statement that fits."""
    made, record = folder / "record", run_records.run_record()
    made.mkdir(exist_ok=True)
    files = {record_folder.RUN: (folder / "file.json").read_bytes(), CRATE: b"{}"}
    for name, content in {**files, STATEMENT: statement(record, files)}.items():
        (made / name).write_bytes(content)
    opened = record_folder.read(made, None)
    json.dumps(to_json(opened.record), ensure_ascii=False).encode()


def _of_engines(raw: bytes) -> list[dict[str, str]]:
    text, machine = raw.decode("utf-8", "replace"), Machine({})
    return [engine.settings(machine, "/etc/engine.conf", text) for engine in registry.ENGINES]


def _projected(folder: Path) -> None:
    runs = small_runs.read(folder / "file.json")
    fit(runs, Target(given_network(12.5, 1.5e-6, None))).point(8)


def _of_validation(folder: Path) -> None:
    small_runs.read(folder / "file.json", "resnet50", 4096, 8)


def _inspected(folder: Path) -> None:
    path = folder / "file.json"
    record = bounded_json.loads(path.read_bytes())
    facts = ImageFacts("amd64", "Debian", "2.41", "", "", (), ())
    shaped = record if isinstance(record, dict) else {}
    image = Image("app", "/app.sif", "sif", 1, "0", False, facts, _sound(shaped, path))
    as_json = {"image": to_json(image), "frameworks": frameworks(image.packages["wheel"])}
    json.dumps(as_json, ensure_ascii=False).encode()
    inspected_text(image, "0" * 64, image.packages).encode()


def _converted(folder: Path) -> None:
    raw = (folder / "file.json").read_bytes()
    digest = hashlib.sha256(raw).hexdigest()
    blob = folder / "blobs/sha256" / digest
    blob.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(raw)
    whole = read_document(_manifest_of(), "", "it")
    assert isinstance(whole, Manifest)
    named = replace(whole.config, digest=f"sha256:{digest}", size=len(raw))
    config = read_configuration(folder, replace(whole, config=named))
    engine_files(config.env, config.labels, _invocation(config.entrypoint, config.command))


@pytest.fixture(scope="module", autouse=True)
def _made_before_anything_is_watched() -> None:
    """What a reader's input needs is made in a folder of its own, in whichever test comes first."""
    _manifest_of()


@cache
def _manifest_of() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return _manifest(Path(folder))


def _credential(folder: Path) -> None:
    environ = {"REGISTRY_AUTH_FILE": str(folder / "file.json"), "PATH": ""}
    auth.find_credential(parse_reference("docker://registry.example/app:1"), environ)


def _trained(folder: Path) -> None:
    manifest = read_manifest(folder, "train", verify=True)
    for batch in Rows(manifest, "train", 0, 1).in_order(2):
        assert np.isfinite(batch.inputs).all() and np.isfinite(batch.targets).all()


def _checked_list(folder: Path) -> None:
    for name, entry in (listing.read_list(folder) or {}).items():
        assert name == entry.name and isinstance(entry.rows, int | None)


def _document(raw: bytes) -> None:
    read_document(raw, "application/vnd.oci.image.manifest.v1+json", "it")


# --- what is in an image ------------------------------------------------------------------------------


def _library(folder: Path) -> bytes:
    """An MPI library with versions of symbols, needed and its own."""
    (folder / "versions").write_text("GLIBC_2.99 { global: MPI_Init; };")
    script = f"-Wl,--version-script={folder}/versions"
    code = MPICH + "int MPI_Send(void) { return MPI_Init(0, 0); }"
    return compiled(folder / "libmpi.so.12", code, script, "-Wl,--build-id").read_bytes()


def _program(folder: Path) -> bytes:
    """A static-pie program with an MPI in it."""
    return compiled(
        folder / "app", MPICH + "int main(void) { return MPI_Init(0, 0); }"
    ).read_bytes()


def _unpacking(folder: Path) -> bytes:
    """A program that unpacks an MPI, and a library that is linked to it."""
    mpi = compiled(folder / "libmpi.so.12", MPICH)
    user = compiled(folder / "user.so", CALLS, str(mpi))
    return packed(compiled(folder / "app", OPENS), {mpi.name: mpi, user.name: user}).read_bytes()


def _scanned(folder: Path) -> None:
    facts = scan_tree(folder)
    json.dumps(to_json(facts), ensure_ascii=False).encode()
    for path in (folder / "usr/lib").iterdir():
        with contextlib.suppress(NotElf):
            symbols(path)


def _unpacked_mpis(folder: Path) -> None:
    unpacked_mpis(folder / "app", Budget(folder))


def _packages(folder: Path) -> None:
    found = installed(folder)
    parts = [component(package, found) for package in found.packages]
    bounded_json.loads(
        document("x", version="", summary="", components=parts, identity="0", epoch=None)
    )
    frameworks(found.versions()["wheel"])


def _layer(pack: bool) -> Callable[[Path], bytes]:
    def make(folder: Path) -> bytes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz" if pack else "w") as archive:
            for name, kind in (("etc", tarfile.DIRTYPE), ("etc/link", tarfile.SYMTYPE), ("etc/hard", tarfile.LNKTYPE),
                               ("usr/.wh.lib", tarfile.REGTYPE), ("pipe", tarfile.FIFOTYPE)):  # fmt: skip
                info = tarfile.TarInfo(name)
                if kind == tarfile.LNKTYPE:
                    file = tarfile.TarInfo("etc/os-release")
                    file.size = 8
                    archive.addfile(file, io.BytesIO(b"ID=some\n"))
                info.type, info.linkname = (
                    kind,
                    "etc/os-release" if kind == tarfile.LNKTYPE else "os-release",
                )
                archive.addfile(info)
            long = tarfile.TarInfo("é" * 100)
            long.pax_headers = {"mtime": "1.5"}
            archive.addfile(long)
        return buffer.getvalue()

    return make


def _laid(folder: Path) -> None:
    merged = read_layers([LayerFile(folder / "file.json")])
    assert all(inode.size >= 0 for _, inode in merged.tree.walk())
    read_files(merged, ["etc/os-release", "etc/link"])
    write_tar(merged, io.BytesIO())


def _streamed(folder: Path) -> None:
    with (folder / "file.json").open("rb") as stream, contextlib.suppress(tarfile.TarError):
        tree_sha256(read_tree(tar_members(stream), budget=Budget(Path(), folder)))


def _archive(folder: Path) -> bytes:
    """A source's archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, kind, target in (("a-1/é" * 40, tarfile.REGTYPE, ""), ("a-1/l", tarfile.SYMTYPE, "x"), ("a-1/h", tarfile.LNKTYPE, "a-1/x")):  # fmt: skip
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            archive.addfile(info)
    return buffer.getvalue()


def _zip(folder: Path) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a-1/x", "text")
        archive.writestr("a-1/", "")
    return buffer.getvalue()


def _wheel(folder: Path) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("app/__init__.py", "")
        archive.writestr("app/_c.so", b"\x7fELF")
        archive.writestr("app-1.0.dist-info/METADATA", _BUILT)
    return buffer.getvalue()


def _built(folder: Path) -> None:
    source_wheels._provided("app", {"app-cpu": folder / "file.json"})
    companions.without_their_libraries({"app": folder / "file.json"}, {"numpy"})
    source_wheels.metadata_of(folder / "file.json")


def _unarchived(read: Callable[[IO[bytes], int], None]) -> Callable[[Path], object]:
    """Unpacks as the jail does, which names the reason of any failure."""

    def run(folder: Path) -> None:
        with tempfile.TemporaryDirectory() as above, (folder / "file.json").open("rb") as stream:
            inner = Path(above, "inner")
            inner.mkdir()
            with contextlib.chdir(inner), contextlib.suppress(Exception):
                read(stream, 1 << 20)
            assert [*Path(above).iterdir()] == [inner]

    return run


def _squashfs(folder: Path) -> bytes:
    """A small tree, by the system's own mksquashfs."""
    (folder / "tree/usr").mkdir(parents=True)
    (folder / "tree/usr/a").write_text("a" * 200)
    (folder / "tree/usr/l").symlink_to("a")
    command = ["mksquashfs", "tree", "made", "-noappend", "-no-xattrs", "-quiet", "-no-progress"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return (folder / "made").read_bytes()


def _based(folder: Path) -> None:
    with contextlib.suppress(overlay.NotLaid):
        overlay._read(folder / "file.json", None)


_DIGEST = f"sha256:{'a' * 64}"
_LAYOUT = {
    "index.json": {"schemaVersion": 2, "manifests": [{"digest": _DIGEST, "size": 300}]},
    f"blobs/sha256/{'a' * 64}": {
        "schemaVersion": 2,
        "annotations": {"org.fairlead.tree.sha256": "b" * 64},
        "layers": [{"digest": _DIGEST, "size": 10}],
    },
}


def _layout_with(changed: str) -> Callable[[Path], object]:
    """Reads the layers of a layout of which one file is the input."""

    def read(folder: Path) -> None:
        for name, value in _LAYOUT.items():
            place = folder / "layout" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            whole = name != changed
            place.write_bytes(_text(value) if whole else (folder / "file.json").read_bytes())
        _layers(folder / "layout")

    return read


_BLOB = Descriptor("application/vnd.oci.image.config.v1+json", _DIGEST, 1)
_OF_BLOB = Manifest(b"", _BLOB.digest, "", _BLOB, (), {})


def _listed_layers(folder: Path) -> None:
    blob = folder / "blobs/sha256" / _BLOB.hex
    blob.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes((folder / "file.json").read_bytes())
    _layers_of(folder, _OF_BLOB)


def _platform(raw: bytes) -> None:
    client = SimpleNamespace(small_blob=lambda _: raw, reference="docker://registry.example/app:1")
    _check_platform(client, _OF_BLOB, "amd64")


def _waited(raw: bytes) -> None:
    answer = requests.Response()
    answer.headers["Retry-After"] = raw.decode("latin-1")
    assert _asked_wait(answer) >= 0


def _shared(raw: bytes) -> None:
    """A policy that the store has for a bucket: somebody is let in, and left out again."""
    policy = {"Policy": raw.decode("utf-8", "replace")}
    client = SimpleNamespace(
        meta=SimpleNamespace(endpoint_url=""),
        get_bucket_policy=lambda **_: policy,
        put_bucket_policy=lambda Bucket, Policy: json.loads(Policy),
        delete_bucket_policy=lambda **_: None,
    )
    place = Prefix(S3(parse_url("s3://lab/hep"), client))
    share.allow(place, ("guest",))
    share.forbid(place)


_POLICY = b"""{"Version": "2012-10-17", "Statement": [
{"Sid": "FairleadRead", "Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::lab/hep/*"}]}"""


def _enveloped(folder: Path) -> bytes:
    return envelope(b"{}", keys.open_private(kept_key(), lambda: PASSPHRASE))


def _signed_record(folder: Path) -> None:
    made, record = folder / "record", run_records.run_record()
    made.mkdir(exist_ok=True)
    files = {record_folder.RUN: _run_record(folder), CRATE: b"{}"}
    text = statement(record, files)
    raw = (folder / "file.json").read_bytes()
    raw = raw.replace(b'"payload": "e30="', b'"payload": "' + base64.b64encode(text) + b'"')
    for name, content in {**files, STATEMENT: text, ENVELOPE: raw}.items():
        (made / name).write_bytes(content)
    with contextlib.suppress(FairleadError):
        record_folder.read(made, {"a": keys.read_public(Path(f"{kept_key()}.pub"))})


def _traced(folder: Path) -> None:
    with contextlib.suppress(OSError):
        [*trace_parts.parts(folder)]
    with contextlib.suppress(OSError):
        trace_parts.host_part(folder)


def _ring(folder: Path) -> bytes:
    """What a rank's core has recorded, of one event."""
    head = trace_parts._HEAD.pack(
        b"FLTRACE1",
        trace_parts._HEAD.size + 0,
        trace_parts._EVENT.size,
        0,
        1,
        7,
        4,
        1,
        0,
        0,
        0,
        b"n1",
        b"mono",
    )
    names = b"main".ljust(trace_parts._NAME, b"\0") * trace_parts._NAMES
    size = trace_parts._HEAD.size + len(names)
    head = head[:8] + size.to_bytes(4, sys.byteorder) + head[12:]
    event = trace_parts._EVENT.pack(1, 10, 12, 20, 1, 8, 0, 0, 1, 0, 1, 2, 3, 4)
    return head + names + event


_STEPS = b"""{"rank": 0, "size": 1, "host": "n1", "reads": "mono", "wall_ns": 1, "begun": 2}
{"clock": [1, 2, 3]}
{"forward_ns": 4}
{"step": 1, "parts": ["read", "forward and backward"], "borders": [1, 2, 3]}
{"thread": "main", "name": "x", "kind": "call", "begin": 1, "end": 2}
"""
_HOST = b"""{"host": "n1", "reads": "mono", "wall_ns": 1}
{"number": 0}
{"thread": "main", "name": "x", "kind": "phase", "begin": 1, "end": 2}
"""


_DATE = b"Sun, 06 Nov 1994 08:49:37 GMT"
_RELEASE_FILE = b"Origin: Debian\nSuite: stable\nDate: Sat, 10 Feb 2024 11:07:25 UTC\n"


def _released(folder: Path) -> None:
    index = AptIndex("debian", "bookworm", ("main",))
    assert isinstance(_epoch(index, folder / "a_dists_x_main_binary-amd64_Packages"), int)


def _plugin(folder: Path) -> bytes:
    code = 'const struct { const char *name; } ncclNet_v8 = { "Some" };'
    return compiled(folder / "libnccl-net.so", code, "-shared").read_bytes()


def _podman(folder: Path) -> None:
    world = World({"CONTAINERS_CONF": str(folder / "file.json"), "HOME": str(folder)})
    podman.setting(world, "engine", "runtime")


def _reports(folder: Path) -> None:
    """What a trial's own program has written: its reports, and a file with the value."""
    figures.Reports(folder / "file.json").read()
    figures._written(folder / "file.json", "a.b")


def _apt(raw: bytes) -> None:
    text = raw.decode("utf-8", "replace")
    for source in (*parse_one_line(text), *parse_deb822(text)):
        assert isinstance(source.uri, str) and source.suites is not None


_STATUS = b"""Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.41-1
Description: GNU C Library
 more

Package: half
Status: deinstall ok config-files
Version: 1

"""
_METADATA = b"""Metadata-Version: 2.4
Name: torch
Version: 2.9.0+cpu
License-Expression: BSD-3-Clause
Classifier: License :: OSI Approved :: BSD License

# text
"""
_RELEASE = b"ID=debian\nVERSION_CODENAME=\"trixie\"\nPRETTY_NAME='Debian GNU/Linux 13'\n"
_CONF = b"include /etc/ld.so.conf.d/*.conf\n/usr/local/lib # own\n/opt/lib\n"
_SOURCES = b"""deb [signed-by=/usr/share/keyrings/a.gpg trusted=yes] https://a.example/debian bookworm main contrib

Types: deb deb-src
URIs: https://a.example/debian https://b.example
Suites: bookworm bookworm-updates
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 -----END PGP PUBLIC KEY BLOCK-----
"""
_LINKS = (
    b'<html><base href="/x"><a href="../a-1.whl#sha256='
    + b"0" * 64
    + b'">a</a><a href=//[::1]/b>b</a>'
)
_WITNESS = b"rank=0\nsize=2\nhost=n1\nmpi=00:1b 5 /opt/mpich/lib/libmpi.so.12\nring=1\nuser=4026531837\nversion=MPICH 4\n"


def _raw(read: Callable[[bytes], object]) -> Callable[[Path], object]:
    return lambda folder: read((folder / "file.json").read_bytes())


_ERRORS = b'{"errors": [{"code": "DENIED", "message": "no"}]}'
_BEARER = b'Bearer realm="https://a.example/token",service="a",scope="b", Basic realm="c"'
_INDEX = b'{"files": [{"filename": "a-1.whl", "url": "a-1.whl", "hashes": {"sha256": "0"}}]}'
_AUTH = b'{"auths": {"registry.example": {"auth": "YTpi"}}, "credHelpers": {}, "credsStore": ""}'

_WIRE = b"""{"event": "started", "host": "nid001", "pid": 7}
{"event": "loaded", "path": "/opt/libnccl-net.so"}
{"event": "interface", "version": 8, "name": "Libfabric"}
{"event": "log", "level": "WARN", "text": "NET/OFI No eligible providers were found"}
{"event": "device", "device": 0, "code": 0, "name": "cxi0", "path": "", "speed": 200000, "port": 1}
{"event": "moved", "messages": 2, "bytes": 200, "errors": 0, "seconds": 0.5}
{"event": "failed", "stage": "close", "what": "finalize returned an error", "code": 3}
"""


def _wire_of(text: str) -> object:
    sides = (side_of(Ended(text, text, 1, False)),) * 2
    done = Wire("libnccl-net.so", WireSettings(), sides)
    return done.line, done.findings(), done.to_json()


_PYTHON = b"import numpy\ntry:\n    from h5py import File\nexcept ImportError:\n    pass\nx = __import__('mpi4py')\n"

READERS = [
    Reader("validation", _validation, _shown),
    Reader("validation-as-runs", _validation_of_two_counts, _of_validation),
    Reader("references", _references, lambda folder: references.read(folder / "file.json")),
    Reader("small-runs", _small_runs, _projected),
    Reader("capture", _capture, lambda folder: capture.read(folder / "file.json")),
    Reader(
        "checkpoint",
        _checkpoint,
        lambda folder: checkpoint.start_of(folder, {"model": "hepcnn"}, True, str),
        put="step-00000004.npz",
    ),
    Reader("image-record", _record, _inspected, refuses=(ValueError,)),
    Reader("image-configuration", _configuration, _converted, but="blobs"),
    Reader("manifest", _manifest, _raw(_document)),
    Reader("registry-error", lambda _: _ERRORS, _raw(lambda raw: server_message(raw, ("secret",)))),
    Reader(
        "challenge", lambda _: _BEARER, _raw(lambda raw: read_challenges(raw.decode("latin-1")))
    ),
    Reader(
        "package-index",
        lambda _: _INDEX,
        _raw(lambda raw: list(_from_json(raw.decode("utf-8", "replace"), "https://a.example/"))),
    ),
    Reader(
        "nccl-log",
        lambda _: (ROOT / "tests/recorded/nccl/logs/2.21.5-missing-library.log").read_bytes(),
        _raw(lambda raw: nccl_verdict.summary(nccl_log.parse(raw.decode("utf-8", "replace")))),
    ),
    Reader(
        "wire-events",
        lambda _: _WIRE,
        _raw(lambda raw: _wire_of(raw.decode("utf-8", "replace"))),
    ),
    Reader("auth-file", lambda _: _AUTH, _credential),
    Reader("public-key", lambda _: keys_file(".pub"), lambda f: keys.read_public(f / "file.json")),
    Reader(
        "private-key",
        lambda _: keys_file(""),
        lambda folder: keys.open_private(folder / "file.json", lambda: PASSPHRASE),
    ),
    Reader("data-hdf5", _hdf5, _trained, put="train.h5"),
    Reader("data-tfrecord", _records(Compression.NONE), _trained, put="train.tfrecord"),
    Reader("data-tfrecord-gzip", _records(Compression.GZIP), _trained, put="train.tfrecord.gz"),
    Reader("elf-library", _library, _scanned, put="usr/lib/libmpi.so.12"),
    Reader("elf-program", _program, _scanned, put="usr/lib/app.so"),
    Reader("onefile-program", _unpacking, _unpacked_mpis, put="app"),
    Reader("layer", _layer(False), _laid),
    Reader("layer-gzip", _layer(True), _laid),
    Reader("tree-stream", _layer(False), _streamed),
    Reader("dpkg-status", lambda _: _STATUS, _packages, put="var/lib/dpkg/status"),
    Reader("wheel-metadata", lambda _: _METADATA, _packages, put="a.dist-info/METADATA"),
    Reader("os-release", lambda _: _RELEASE, _packages, put="etc/os-release"),
    Reader("loader-configuration", lambda _: _CONF, system_folders, put="etc/ld.so.conf"),
    Reader("apt-sources", lambda _: _SOURCES, _raw(_apt)),
    Reader(
        "package-page",
        lambda _: _LINKS,
        _raw(lambda raw: list(_from_html(raw.decode("utf-8", "replace"), "https://a.example/"))),
    ),
    Reader(
        "witness",
        lambda _: _WITNESS.ljust(2048, b"\0"),
        lambda folder: read_records(folder / "file.json", folder),
    ),
    Reader("data-list", _list, _checked_list, put=listing.NAME),
    Reader("run-record", _run_record, _verified_record, but="record"),
    Reader("python-file", lambda _: _PYTHON, _raw(imports)),
    Reader("token", lambda _: _TOKEN, _raw(token_of), refuses=(ValueError,)),
    Reader("source-tar", _archive, _unarchived(unarchive.untar), but=""),
    Reader("source-zip", _zip, _unarchived(unarchive.unzip), but=""),
    Reader("wheel", _zip, lambda folder: _unpacked(folder / "file.json")),
    Reader("built-wheel", _wheel, _built, refuses=(ValueError,), but="fairlead-wheel-"),
    Reader(
        "built-metadata", lambda _: _BUILT, _raw(source_wheels.read_metadata), refuses=(ValueError,)
    ),
    Reader("squashfs-base", _squashfs, _based),
    Reader("squashfs-head", _squashfs, lambda folder: _damage(folder / "file.json", 0)),
    Reader("tree-record", _record, record_in, put=RECORD),
    *(
        Reader(f"layout-{kind}", lambda _, v=value: _text(v), _layout_with(name), but="layout")
        for kind, (name, value) in zip(("index", "manifest"), _LAYOUT.items(), strict=True)
    ),
    Reader("layout-layers", _configuration, _listed_layers, but="blobs"),
    Reader("image-platform", _configuration, _raw(_platform)),
    Reader("retry-after", lambda _: _DATE, _raw(_waited)),
    Reader(
        "store-date", lambda _: _DATE, _raw(lambda raw: failures._difference(raw.decode("latin-1")))
    ),
    Reader("store-policy", lambda _: _POLICY, _raw(_shared)),
    Reader("artifacts-identity", lambda _: b'{"search": "ab"}', _raw(artifacts.identity)),
    Reader("release-file", lambda _: _RELEASE_FILE, _released, put="a_dists_x_InRelease"),
    Reader("record-envelope", _enveloped, _signed_record, but="record"),
    Reader(
        "record-before",
        _run_record,
        lambda folder: record_folder._is_replaceable(folder / "record"),
        put=f"record/{record_folder.RUN}",
    ),
    Reader("trace-ring", _ring, _traced, put="rank-000000.ring"),
    Reader("trace-steps", lambda _: _STEPS, _traced, put="rank-000000.jsonl"),
    Reader("trace-host", lambda _: _HOST, _traced, put="host.jsonl"),
    Reader("podman-settings", lambda _: b'[engine]\nruntime = "crun"\n', _podman),
    Reader("trial-reports", lambda _: b'{"step": 1, "values": {"loss": 0.5}}\n', _reports),
    Reader(
        "plugin-name",
        _plugin,
        lambda folder: first_pointed_text(folder / "file.json", "ncclNet_v8"),
        refuses=(NotElf,),
    ),
    Reader(
        "data-tfrecord-count",
        _records(Compression.GZIP),
        lambda folder: tfrecord.count(folder / "file.json"),
        refuses=(OSError, ValueError),
    ),
    Reader("engine-settings", lambda _: _SARUS, _raw(_of_engines)),
]


def keys_file(suffix: str) -> bytes:
    path = kept_key()
    return path.with_name(path.name + suffix).read_bytes() if suffix else path.read_bytes()


# --- damage -----------------------------------------------------------------------------------------

_ODD: list[Any] = [
    *(10**400, -(10**400), 2**63, 2**64 - 1, -1, 0, 1e308, 5e-324, float("nan"), float("inf")),
    *(None, True, [], {}, [[]], {"": {}}, "", "x" * 70_000, "\ud800", "a\udfffb", "\0", "\x1b[2J"),
    *("../../etc/passwd", "<script>alert(1)</script>", "\u202e", "1e999", "9" * 400, [0] * 1000),
]


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a JSON value: what holds it, and its key or number there."""
    found: list[tuple[Any, Any]] = []
    pending = [value]
    while pending:
        outer = pending.pop()
        keys_of = list(outer) if isinstance(outer, dict) else range(len(outer))
        for key in keys_of:
            found.append((outer, key))
            if isinstance(outer[key], dict | list):
                pending.append(outer[key])
    return found


def altered(whole: bytes, source: random.Random) -> bytes:
    """``whole`` with values of its JSON replaced, removed or moved; as it is where it is not JSON."""
    try:
        value = json.loads(whole)
    except ValueError:
        return whole
    for _ in range(source.randint(1, 3)):
        places = _places(value)
        if not places:
            break
        outer, key = source.choice(places)
        how = source.random()
        if how < 0.7:
            outer[key] = copy.deepcopy(source.choice(_ODD))
        elif how < 0.85 or not isinstance(outer, dict):
            del outer[key]
        else:
            outer[source.choice(_WORDS)] = outer.pop(key)
    return json.dumps(value).encode()


@cache
def whole_input(name: str) -> bytes:
    (reader,) = (each for each in READERS if each.name == name)
    with tempfile.TemporaryDirectory() as folder:
        return reader.make(Path(folder))


EVERY = pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)


@EVERY
def test_whole_input_is_read(reader: Reader, tmp_path: Path) -> None:
    assert reader.try_one(tmp_path, whole_input(reader.name))


@EVERY
@given(data=st.data())
def test_damaged_input_is_read_or_refused(
    reader: Reader, tmp_path: Path, data: st.DataObject
) -> None:
    whole = whole_input(reader.name)
    if data.draw(st.booleans()):
        raw = altered(whole, random.Random(data.draw(st.integers(0, 2**32))))
    else:
        raw = data.draw(damaged([whole]) | st.binary(max_size=200))
    reader.try_one(tmp_path, raw)


@pytest.mark.parametrize(
    ("reader", "file"),
    [
        pytest.param(reader, file, id=f"{reader.name}-{file.name}")
        for reader in READERS
        for file in sorted((RECORDED / reader.name).glob("*"))
    ],
)
def test_input_that_once_ended_otherwise_is_refused(
    reader: Reader, file: Path, tmp_path: Path
) -> None:
    reader.try_one(tmp_path, file.read_bytes())


def test_recorded_inputs_have_a_reader() -> None:
    known = {reader.name for reader in READERS}
    assert {folder.name for folder in RECORDED.iterdir()} <= known


@pytest.mark.full
@EVERY
def test_an_hour_of_damaged_inputs_is_read_or_refused(
    reader: Reader, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    seconds = float(os.environ.get("FAIRLEAD_FUZZ_S", HOUR_S)) / len(READERS)
    whole, late, tried = whole_input(reader.name), time.monotonic() + seconds, 0
    seed = int.from_bytes(os.urandom(4), "big")
    source = random.Random(seed)
    while time.monotonic() < late:
        raw = bytearray(altered(whole, source) if source.random() < 0.5 else whole)
        for _ in range(source.randint(0, 4)):
            at = source.randrange(len(raw) + 1)
            end = min(len(raw), at + source.randint(0, 40))
            put = source.choice([b"", source.randbytes(4), raw[at:end] * 9])
            raw[at:end] = put or source.choice(_WORDS).encode()
        try:
            reader.try_one(tmp_path, bytes(raw))
        except BaseException:
            kept_at = RECORDED / reader.name / hashlib.sha256(raw).hexdigest()[:12]
            kept_at.parent.mkdir(parents=True, exist_ok=True)
            kept_at.write_bytes(raw)
            raise
        tried += 1
    record_property("inputs", tried)
