"""Which image of an OCI image layout is meant."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from fairlead.base.errors import ExitCode, FairleadError
from fairlead.image.open import find
from fairlead_build.cache.store import Cache
from fairlead_build.distribution.push import find_source
from fairlead_build.registry.layout import read_layout
from fairlead_build.registry.manifest import OCI_MANIFEST

_AMD64 = {"os": "linux", "architecture": "amd64"}


def entry(
    folder: Path,
    body: str,
    name: str = "",
    platform: dict[str, str] | None = None,
    artifact: str = "",
) -> dict[str, Any]:
    """The entry of an index for a manifest, distinguished from others by ``body``."""
    config = {"mediaType": "c", "digest": f"sha256:{'0' * 64}", "size": 2}
    manifest = {"schemaVersion": 2, "config": config, "layers": [], "annotations": {"body": body}}
    text = json.dumps(manifest).encode()
    digest = hashlib.sha256(text).hexdigest()
    blob = folder / "blobs" / "sha256" / digest
    blob.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(text)
    made: dict[str, Any] = {"mediaType": OCI_MANIFEST, "digest": f"sha256:{digest}", "size": 9}
    if name:
        made["annotations"] = {"org.opencontainers.image.ref.name": name}
    if platform:
        made["platform"] = platform
    if artifact:
        made["artifactType"] = artifact
    return made


def lay_out(folder: Path, *entries: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": entries}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder


def chosen(folder: Path, tag: str = "") -> str:
    return read_layout(folder, "amd64", tag).annotations["body"]


@pytest.mark.parametrize("platform", [None, _AMD64])
def test_layout_of_several_images_is_refused_without_a_name(
    tmp_path: Path, platform: dict[str, str] | None
) -> None:
    entries = [entry(tmp_path, name, name, platform) for name in ("old", "new")]
    lay_out(tmp_path, *entries)
    assert (chosen(tmp_path, "old"), chosen(tmp_path, "new")) == ("old", "new")
    for tag, remedy in (("", ":TAG"), ("none", ":TAG")):
        with pytest.raises(FairleadError) as caught:
            chosen(tmp_path, tag)
        (finding,) = caught.value.findings
        assert (finding.check, caught.value.code) == ("layout", ExitCode.USAGE)
        assert "old, new" in finding.why and remedy in finding.remedy


def test_layout_of_an_image_of_two_names_is_that_image(tmp_path: Path) -> None:
    lay_out(tmp_path, *(entry(tmp_path, "same", name) for name in ("1.0", "latest")))
    assert chosen(tmp_path) == chosen(tmp_path, "1.0") == "same"


def test_layout_of_several_platforms_is_the_one_for_the_machine(tmp_path: Path) -> None:
    other = {"os": "linux", "architecture": "arm64"}
    lay_out(tmp_path, entry(tmp_path, "other", "a", other), entry(tmp_path, "mine", "a", _AMD64))
    assert chosen(tmp_path) == "mine"


def test_layout_attestations_and_signatures_are_no_images(tmp_path: Path) -> None:
    lay_out(
        tmp_path,
        entry(tmp_path, "attestation", platform={"os": "unknown", "architecture": "unknown"}),
        entry(tmp_path, "signature", "sig", artifact="application/vnd.dev.cosign.signature"),
        entry(tmp_path, "image", "a"),
    )
    assert chosen(tmp_path) == "image"


def test_layout_image_is_named_as_for_skopeo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("made")
    lay_out(folder, entry(folder, "a", "1"), entry(folder, "b", "2"))
    cache = Cache(tmp_path / "cache")
    assert find_source("oci:made:2", False, cache).name == "2"
    for name, check, words in (
        ("oci:made:3", "layout", "there are: 1, 2"),
        ("oci:none", "image", "oci-layout"),
        ("containers-storage:x", "image", "reads OCI layouts"),
        ("dir:x", "image", "reads OCI layouts"),
    ):
        with pytest.raises(FairleadError) as caught:
            find(name, {"XDG_CACHE_HOME": str(tmp_path)})
        (finding,) = caught.value.findings
        assert finding.check == check and words in finding.why and finding.remedy
