"""Manifests and indexes as values, from untrusted bytes.

Source: OCI image specification 1.1, image-manifest.md, image-index.md and descriptor.md; Docker's
image manifest version 2, schema 2. What the JSON says twice or in contradiction is refused, as
advisory GHSA-77vh-xpmg-72qh asks for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fairlead.base import bounded_json
from fairlead.base.errors import fail
from fairlead_build.registry.reference import is_digest

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
MANIFESTS = (OCI_MANIFEST, DOCKER_MANIFEST)
INDEXES = (OCI_INDEX, DOCKER_LIST)
SIF_CONFIG = "application/vnd.sylabs.sif.config.v1+json"
SIF_LAYER = "application/vnd.sylabs.sif.layer.v1.sif"
# The note that names the file that a layer is, for `oras pull`.
TITLE = "org.opencontainers.image.title"
# The whole configuration of an artifact, which needs none.
EMPTY = b"{}"

MOST_BYTES = 4 << 20  # the specification lets registries refuse larger manifests
_MOST_ENTRIES = 1024
_MOST_SIZE = 1 << 50


@dataclass(frozen=True)
class Descriptor:
    """What a manifest says of one blob or of another manifest; ``size`` in bytes.

    Attributes:
        artifact: its ``artifactType``, of what is not an image.
    """

    media_type: str
    digest: str
    size: int
    annotations: Mapping[str, str] = field(default_factory=dict)
    platform: Mapping[str, str] = field(default_factory=dict)
    artifact: str = ""

    @property
    def hex(self) -> str:
        return self.digest.partition(":")[2]

    def to_json(self) -> dict[str, Any]:
        """As it stands in a manifest."""
        document: dict[str, Any] = {
            "mediaType": self.media_type,
            "digest": self.digest,
            "size": self.size,
        }
        if self.annotations:
            document["annotations"] = dict(self.annotations)
        return document


@dataclass(frozen=True)
class Manifest:
    """The manifest of one image or artifact."""

    data: bytes = field(repr=False)
    digest: str
    media_type: str
    config: Descriptor
    layers: tuple[Descriptor, ...]
    annotations: Mapping[str, str]

    @property
    def blobs(self) -> tuple[Descriptor, ...]:
        """Configuration and layers; what comes twice, once."""
        return tuple({item.digest: item for item in (self.config, *self.layers)}.values())

    @property
    def sif(self) -> Descriptor | None:
        """The SIF, when this is one that was pushed as such."""
        return next((item for item in self.layers if item.media_type == SIF_LAYER), None)


@dataclass(frozen=True)
class Index:
    """A list of manifests, one a platform."""

    data: bytes = field(repr=False)
    digest: str
    media_type: str
    manifests: tuple[Descriptor, ...]


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def artifact(layer: Descriptor, config_type: str, kind: str = "") -> Manifest:
    """The manifest of one file that is not an image, in the manner of ORAS.

    Args:
        config_type: media type of its (empty) configuration.
        kind: its ``artifactType``, if any.
    """
    config = Descriptor(config_type, digest_of(EMPTY), len(EMPTY))
    value = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        **({"artifactType": kind} if kind else {}),
        "config": config.to_json(),
        "layers": [layer.to_json()],
    }
    data = json.dumps(value, separators=(",", ":")).encode()
    return Manifest(data, digest_of(data), OCI_MANIFEST, config, (layer,), {})


def read_document(data: bytes, media_type: str, where: str) -> Manifest | Index:
    """The manifest or index in ``data``.

    Args:
        media_type: as the sender called it; empty when it did not.
        where: whose bytes they are; for errors.
    Raises:
        FairleadError: exit code 2; it is neither, or contradicts itself.
    """
    try:
        return _read(data, media_type.partition(";")[0].strip())
    except ValueError as exc:
        why = str(exc) if str(exc).isprintable() else ascii(str(exc))
        raise fail("manifest-not-image", where=where, why=why) from None


# What follows raises a ValueError that says what is wrong.


def _read(data: bytes, announced: str) -> Manifest | Index:
    if len(data) > MOST_BYTES:
        raise ValueError(f"it has {len(data)} bytes, a manifest has {MOST_BYTES} at most")
    try:
        value = bounded_json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    if value.get("schemaVersion") != 2:
        raise ValueError(
            f"its schemaVersion is {str(value.get('schemaVersion'))[:20]}, fairlead reads 2; "
            "images of 2016 and before must be pushed again by a newer Docker"
        )
    kind = _kind(value, announced)
    if kind in INDEXES:
        manifests = _descriptors(value.get("manifests"), "manifests")
        return Index(data, digest_of(data), kind, manifests)
    config = _descriptor(value.get("config"), "config")
    layers = _descriptors(value.get("layers"), "layers")
    notes = _texts(value.get("annotations"), "annotations")
    return Manifest(data, digest_of(data), kind, config, layers, notes)


def _kind(value: Mapping[str, Any], announced: str) -> str:
    declared = value.get("mediaType", "")
    known = (*MANIFESTS, *INDEXES)
    if declared and announced in known and declared != announced:
        raise ValueError(f"it calls itself {str(declared)[:80]}, and was sent as {announced}")
    if "manifests" in value and ("layers" in value or "config" in value):
        raise ValueError("it is a manifest and an index at once")
    kind = declared or (announced if announced in known else "")
    if not kind:
        kind = OCI_INDEX if "manifests" in value else OCI_MANIFEST
    if kind not in known:
        raise ValueError(f"its media type is {str(kind)[:80]}")
    if (kind in INDEXES) is not ("manifests" in value):
        raise ValueError(f"its content is not that of its media type, {kind}")
    return str(kind)


def _descriptors(value: object, name: str) -> tuple[Descriptor, ...]:
    if not isinstance(value, list):
        raise ValueError(f"`{name}` is not a list")
    if len(value) > _MOST_ENTRIES:
        raise ValueError(f"`{name}` has {len(value)} entries, {_MOST_ENTRIES} at most are read")
    return tuple(_descriptor(item, f"{name}[{n}]") for n, item in enumerate(value))


def _descriptor(value: object, name: str) -> Descriptor:
    if not isinstance(value, dict):
        raise ValueError(f"`{name}` is not a JSON object")
    media_type, size = value.get("mediaType"), value.get("size")
    if not isinstance(media_type, str) or len(media_type) > 255 or not media_type.isprintable():
        raise ValueError(f"`{name}` has no media type")
    if not is_digest(value.get("digest")):
        raise ValueError(f"`{name}` has no sha256 digest")
    if type(size) is not int or not 0 <= size <= _MOST_SIZE:
        raise ValueError(f"`{name}` has no sensible size")
    platform = value.get("platform") or {}
    if not isinstance(platform, dict):
        raise ValueError(f"the platform of `{name}` is not a JSON object")
    words = {k: v for k, v in platform.items() if isinstance(v, str) and v.isprintable()}
    notes = _texts(value.get("annotations"), f"{name}.annotations")
    artifact = value.get("artifactType", "")
    if not isinstance(artifact, str):
        raise ValueError(f"the artifact type of `{name}` is not a text")
    return Descriptor(media_type, str(value["digest"]), size, notes, words, artifact)


def _texts(value: object, name: str) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise ValueError(f"`{name}` is not a table of text")
    return value
