"""What the tests of signatures sign: a key made once a run, small images of each format."""

from __future__ import annotations

import hashlib
import json
import tempfile
from functools import cache
from pathlib import Path

from fairlead.image import keys
from fairlead_build.formats.sif import write_sif

PASSPHRASE = b"correct horse"
BODY = b"hsqs" + bytes(range(256)) * 12
DOCUMENT = json.dumps(
    {
        "schema": "fairlead/image",
        "version": 1,
        "recipe": "tiny",
        "squashfs_sha256": hashlib.sha256(BODY).hexdigest(),
        "tree_sha256": "7e" * 32,
    }
).encode()


@cache
def kept_key() -> Path:
    """A private key with :data:`PASSPHRASE`; making one takes a fifth of a second."""
    path = Path(_folder().name) / "test.key"
    keys.new_key(path, PASSPHRASE)
    return path


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="fairlead-test-key-")  # gone when the run ends


def make_sif(folder: Path, name: str = "tiny.sif") -> Path:
    """A SIF as fairlead makes it, of a squashfs that nobody could mount."""
    squashfs = folder / "root.squashfs"
    squashfs.write_bytes(BODY)
    target = folder / name
    digest = hashlib.sha256(BODY).hexdigest()
    write_sif(
        target, squashfs, ("image.json", DOCUMENT), arch="amd64", epoch=1, squashfs_sha256=digest
    )
    return target


def make_layout(folder: Path) -> Path:
    """An OCI layout of one layer."""
    blobs = folder / "blobs/sha256"
    blobs.mkdir(parents=True)

    def blob(content: bytes) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return {"digest": f"sha256:{digest}", "size": len(content)}

    config = {"mediaType": "application/vnd.oci.image.config.v1+json", **blob(b"{}")}
    layer = {"mediaType": "application/vnd.oci.image.layer.v1.tar", **blob(bytes(1024))}
    manifest = {"schemaVersion": 2, "config": config, "layers": [layer]}
    kind = "application/vnd.oci.image.manifest.v1+json"
    index = {
        "schemaVersion": 2,
        "manifests": [{"mediaType": kind, **blob(json.dumps(manifest).encode())}],
    }
    (folder / "index.json").write_text(json.dumps(index))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder
