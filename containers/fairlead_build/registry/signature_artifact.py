"""The signature of a SIF in a registry: an artifact of its own, under a tag made of the SIF's sha256.

The signature is found from the SIF alone, whatever its tag or digest, and signing an image that was
pushed long ago moves none of its digests. The tag is of the form that cosign gives to signatures;
what lies there is fairlead's own file. It proves nothing until ``fairlead verify`` has read it.
"""

from __future__ import annotations

from pathlib import Path

from fairlead.base.errors import FairleadError
from fairlead.base.paths import atomic_write
from fairlead.image.signature import parse, signature_file
from fairlead_build.registry.client import Client
from fairlead_build.registry.manifest import TITLE, Descriptor, Manifest, artifact, digest_of

SIGNATURE_LAYER = "application/vnd.fairlead.signature.v1+json"
# OCI image specification 1.1, "Guidance for an Empty Descriptor".
EMPTY_CONFIG = "application/vnd.oci.empty.v1+json"
_MOST_BYTES = 1 << 20


def tag_of(sif_sha256: str) -> str:
    return f"sha256-{sif_sha256}.sig"


def signature_of(sif: Path, sif_sha256: str) -> bytes:
    """The signature next to ``sif``; empty when there is none, or it is of other bits.

    Raises:
        OSError: it cannot be read.
    """
    try:
        text = signature_file(sif).read_bytes()
        statement, _ = parse(text, signature_file(sif))
    except (FileNotFoundError, FairleadError):
        return b""
    return text if sif_sha256 in {file.sha256 for file in statement.files} else b""


def manifest_of(text: bytes, name: str) -> Manifest:
    """The manifest of the signature ``text`` of the file ``name``."""
    layer = Descriptor(SIGNATURE_LAYER, digest_of(text), len(text), {TITLE: f"{name}.sig"})
    return artifact(layer, EMPTY_CONFIG, SIGNATURE_LAYER)


def fetch_signature(client: Client, sif_sha256: str, sif: Path) -> bool:
    """Writes the signature next to ``sif``; whether the registry has one.

    Raises:
        FairleadError: it cannot be fetched, or is not a signature.
        OSError: it cannot be written.
    """
    tag = tag_of(sif_sha256)
    if not client.has_manifest(tag, pushing=False):
        return False
    manifest = client.manifest(tag)
    layers = manifest.layers if isinstance(manifest, Manifest) else ()
    item = next((layer for layer in layers if layer.media_type == SIGNATURE_LAYER), None)
    if item is None:
        return False  # a foreign signature, e.g. one of cosign
    text = client.small_blob(item, _MOST_BYTES)
    with atomic_write(signature_file(sif)) as out:
        out.write(text)
    return True
