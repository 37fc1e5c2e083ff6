"""Image archives of any making: the layout in them, or a refusal that says why."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.base.errors import ExitCode, FairleadError
from fairlead.base.progress import Silent
from fairlead.image.open import find
from fairlead_build.cache.store import Cache
from fairlead_build.distribution.push import find_source, source_of
from fairlead_build.formats.convert import open_layout
from fairlead_build.registry.archive import is_archive, lay_out_archive

Member = tuple[str, bytes | str]  # a text is where a symlink leads


def tar(*members: Member) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def sha(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


LAYER = tar(("usr/bin/true", b"#!/bin/sh\n"))
OTHER = tar(("usr/bin/false", b"#!/bin/sh\nexit 1\n"))


def configuration(*layers: bytes) -> bytes:
    ids = [f"sha256:{sha(layer)}" for layer in layers]
    return json.dumps({"architecture": "amd64", "rootfs": {"diff_ids": ids}}).encode()


def docker(**images: tuple[bytes, ...]) -> bytes:
    """What `docker save` writes of images by tag; a layer that a second image shares is a symlink."""
    members: list[Member] = []
    listed: list[dict[str, Any]] = []
    places: dict[bytes, str] = {}
    for tag, layers in images.items():
        names = []
        for number, layer in enumerate(layers):
            names.append(f"{tag}{number}/layer.tar")
            known = places.setdefault(layer, names[-1])
            members.append((names[-1], layer if known == names[-1] else f"../{known}"))
        body = configuration(*layers)
        members.append((f"{tag}.json", body))
        listed.append({"Config": f"{tag}.json", "RepoTags": [f"app:{tag}"], "Layers": names})
    return tar(*members, ("manifest.json", json.dumps(listed).encode()))


def oci(**images: tuple[bytes, ...]) -> bytes:
    """A layout of images by tag."""
    blobs: dict[str, bytes] = {}

    def blob(body: bytes, media_type: str) -> dict[str, Any]:
        blobs[sha(body)] = body
        return {"mediaType": media_type, "digest": f"sha256:{sha(body)}", "size": len(body)}

    entries = []
    for tag, layers in images.items():
        manifest = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": blob(configuration(*layers), "application/vnd.oci.image.config.v1+json"),
            "layers": [blob(body, "application/vnd.oci.image.layer.v1.tar") for body in layers],
        }
        own = blob(json.dumps(manifest).encode(), manifest["mediaType"])
        entries.append({**own, "annotations": {"org.opencontainers.image.ref.name": tag}})
    index = {"schemaVersion": 2, "manifests": entries}
    listed = [(f"blobs/sha256/{digest}", body) for digest, body in blobs.items()]
    return tar(("oci-layout", b"{}"), ("index.json", json.dumps(index).encode()), *listed)


def laid_out(archive: bytes, folder: Path, tag: str = "") -> list[bytes]:
    """The layers of the image ``tag``, lowest first."""
    file = folder / "image.tar"
    file.write_bytes(archive)
    assert is_archive(file)
    lay_out_archive(file, tag, folder / "layout", Silent())
    _, layers, _ = open_layout(folder / "layout")
    return [layer.path.read_bytes() for layer in layers]


@pytest.mark.parametrize("write", [docker, oci])
def test_one_image_is_the_image(write: Any, tmp_path: Path) -> None:
    assert laid_out(write(one=(LAYER, OTHER)), tmp_path) == [LAYER, OTHER]


@pytest.mark.parametrize("write", [docker, oci])
def test_image_of_several_is_named(write: Any, tmp_path: Path) -> None:
    archive = write(one=(LAYER, OTHER), two=(OTHER, LAYER, OTHER))
    (tmp_path / "two").mkdir()
    assert laid_out(archive, tmp_path / "two", "two") == [OTHER, LAYER, OTHER]
    for tag, why in (("", "several images: "), ("three", "no image three; ")):
        (tmp_path / (tag or "none")).mkdir()
        with pytest.raises(FairleadError) as caught:
            laid_out(archive, tmp_path / (tag or "none"), tag)
        assert caught.value.code is ExitCode.USAGE
        finding = caught.value.findings[0]
        assert why in finding.why and "one" in finding.why and ":TAG" in finding.remedy


@pytest.mark.parametrize(
    ("start", "packed"), [(b"", ""), (b"\x1f\x8b", "+gzip"), (b"\x28\xb5\x2f\xfd", "+zstd")]
)
def test_layers_are_typed_by_how_they_are_packed(start: bytes, packed: str, tmp_path: Path) -> None:
    """Docker's archives do not state it; containerd saves what a registry sent."""
    assert laid_out(docker(one=(start + LAYER,)), tmp_path) == [start + LAYER]
    [manifest] = (
        json.loads(p.read_bytes())
        for p in tmp_path.rglob("blobs/sha256/*")
        if b'"layers"' in p.read_bytes()
    )
    assert manifest["layers"][0]["mediaType"] == f"application/vnd.oci.image.layer.v1.tar{packed}"


@pytest.mark.parametrize(
    ("archive", "why"),
    [
        (tar(("etc/passwd", b"root")), "neither an OCI image layout"),
        (tar(("manifest.json", b"[{}]")), "list of images is invalid"),
        (tar(("manifest.json", b"[" * 9999)), "list of images is invalid"),
        (tar(("manifest.json", b'[{"Config": "../../etc/passwd", "Layers": []}]')), "is missing"),
        (tar(("manifest.json", b'[{"Config": "a.json", "Layers": []}]'), ("a.json", "a.json")), "is missing"),
        (tar(("manifest.json", b'[{"Config": "a.json", "Layers": []}]'), ("a.json", "/etc/passwd")), "is missing"),
        (tar(("index.json", b"{}"), ("oci-layout", b"{}")), "list of images is invalid"),
        (b"\x28\xb5\x2f\xfd rest", "packed with zstd"),
        (b"\x1f\x8b rest", ""),
    ],
)  # fmt: skip
def test_archive_that_is_none_is_refused(archive: bytes, why: str, tmp_path: Path) -> None:
    file = tmp_path / "image.tar"
    file.write_bytes(archive)
    with pytest.raises(FairleadError) as caught:
        lay_out_archive(file, "", tmp_path / "layout", Silent())
    finding = caught.value.findings[0]
    assert why in finding.why and str(file) in finding.where and finding.remedy


def test_members_leave_the_folder_by_no_name(tmp_path: Path) -> None:
    """What escapes by its name is not written there, even if the list of images asks for it."""
    outside = tmp_path / "outside.json"
    archive = tar(
        (f"../{outside.name}", b"{}"),
        (str(outside), b"{}"),
        ("manifest.json", json.dumps([{"Config": f"../{outside.name}", "Layers": []}]).encode()),
    )
    folder = tmp_path / "in"
    folder.mkdir()
    with pytest.raises(FairleadError):
        laid_out(archive, folder)
    assert not outside.exists()


@given(
    cut=st.integers(0, 1 << 16), flip=st.integers(0, 1 << 16), write=st.sampled_from([docker, oci])
)
def test_damaged_archive_is_read_right_or_refused(
    cut: int, flip: int, write: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    body = bytearray(write(one=(LAYER, OTHER)))
    body[flip % len(body)] ^= 0x41
    file = folder / "image.tar"
    file.write_bytes(body[: cut % len(body) + 1])
    try:
        lay_out_archive(file, "", folder / "layout", Silent())
        open_layout(folder / "layout")
    except FairleadError as exc:
        assert exc.findings[0].why and exc.findings[0].remedy


def test_name_of_an_archive_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(FairleadError) as caught:
        find(f"docker-archive:{tmp_path}/gone.tar:one")
    assert caught.value.findings[0].check == "image-archive"
    for name in ("x" * 5000, f"{'x' * 5000}:y", "a\0b:c"):
        with pytest.raises(FairleadError):
            find(name)


@pytest.mark.parametrize("write", [docker, oci])
def test_archive_is_pushed_as_the_layers_in_it(write: Any, tmp_path: Path) -> None:
    (tmp_path / "image.tar").write_bytes(write(one=(LAYER,), two=(OTHER,)))
    cache = Cache(tmp_path / "cache")
    cache.make()
    for name in ("{}:two", "oci-archive:{}:two"):
        origin = find_source(name.format(tmp_path / "image.tar"), True, cache)
        with source_of(origin, cache, Silent()) as source:
            assert source.layout is not None and source.sif is None
            _, layers, _ = open_layout(source.layout)
            assert [layer.path.read_bytes() for layer in layers] == [OTHER]
