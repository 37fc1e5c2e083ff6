"""Finding images by name, and records that anybody may have written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairlead.base.errors import ExitCode, FairleadError
from fairlead.image.open import _sound, find, open_image
from fairlead_build.cache.store import Cache
from fairlead_build.distribution.pull_store import PulledImage, write_pulled
from fairlead_build.registry.reference import parse_reference


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": "/usr/bin:/bin"}


def test_find_built_name_comes_before_a_folder_of_that_name(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    image = tmp_path / "image.sif"
    image.touch()
    (tmp_path / "here/tensorflow").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    assert find("tensorflow", environ) == tmp_path / "here/tensorflow"
    index = tmp_path / "cache/fairlead/images/by-name/tensorflow.json"
    index.parent.mkdir(parents=True)
    index.write_text(json.dumps({"path": str(image)}))
    assert find("tensorflow", environ) == image
    assert find("./tensorflow", environ) == tmp_path / "here/tensorflow"


@pytest.mark.parametrize(
    "record",
    [
        {"env": [1]},
        {"env": {"A": 1}},
        {"packages": {"wheel": ["x"]}},
        {"packages": "x"},
        {"recipe": {}},
        {"squashfs_sha256": 7},
    ],
)
def test_record_of_the_wrong_kind_is_reported(record: dict[str, object]) -> None:
    with pytest.raises(FairleadError) as caught:
        _sound(record, Path("x.sif"))
    assert caught.value.code is ExitCode.USAGE
    assert [f.check for f in caught.value.findings] == ["image-record"]


def test_find_path_without_an_image_names_what_is_near(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    by_name = tmp_path / "cache/fairlead/images/by-name"
    by_name.mkdir(parents=True)
    (by_name / "mpi-base.json").write_text("{}")
    (tmp_path / "image.sif").touch()
    (tmp_path / "image.txt").touch()
    (tmp_path / "link.sif").symlink_to("gone.sif")
    for name, word in (
        ("imgae.sif", f"Did you mean `{tmp_path}/image.sif`?"),
        ("xyz.sif", "no such file or folder;"),
        ("mpi-bsae.sif", "Did you mean `mpi-base`?"),
        ("link.sif", "a link to gone.sif"),
        ("none/image.sif", f"there is no folder {tmp_path}/none"),
    ):
        with pytest.raises(FairleadError) as caught:
            find(str(tmp_path / name), environ)
        found = caught.value.findings[0]
        assert word in f"{found.why};" and found.remedy != "fairlead recipe list", name


def test_record_may_lack_anything() -> None:
    assert _sound({}, Path("x.sif")) == {}


def test_find_pulled_reference_by_tag_and_by_digest(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    image = tmp_path / "image.sif"
    image.write_bytes(b"1234")
    cache = Cache(tmp_path / "cache/fairlead")
    reference = parse_reference("docker://r.example.org/ml/base:1")
    digest = "sha256:" + "a" * 64
    with pytest.raises(FairleadError) as caught:
        find(str(reference), environ)
    assert caught.value.code == ExitCode.USAGE
    assert caught.value.findings[0].remedy == f"fairlead pull {reference}"
    pulled = PulledImage(str(reference), digest, str(image), "", 4, "sif")
    for name in (reference, reference.at(digest)):
        write_pulled(cache, name, pulled)
        assert find(str(name), environ) == image
    assert find(f"{reference}@{digest}", environ) == image
    with pytest.raises(FairleadError, match="has not been pulled"):
        find(f"{reference}@{digest[:-1]}b", environ)
    image.write_bytes(b"12345")  # somebody changed it: what the record tells of is gone
    with pytest.raises(FairleadError, match="has not been pulled"):
        find(str(reference), environ)


def test_folder_of_a_recipe_is_answered_with_how_to_build_it(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text('[recipe]\nname = "mine"\n')
    with pytest.raises(FairleadError) as caught:
        open_image(str(tmp_path))
    (finding,) = caught.value.findings
    assert "a recipe" in finding.why and f"fairlead build {tmp_path}" in finding.remedy


def test_find_image_that_shifter_keeps_by_folder_and_id(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    (tmp_path / "abc.squashfs").touch()
    with pytest.raises(FairleadError) as caught:
        find(f"{tmp_path}/abc", environ)
    [finding] = caught.value.findings
    assert finding.what == f"{tmp_path}/abc.meta is missing", "not `no such file`"
    assert finding.where == f"{tmp_path}/abc.squashfs" and "no such file" not in finding.why
    with pytest.raises(FairleadError) as caught:
        find(f"{tmp_path}/abd", environ)
    assert "no such file" in caught.value.findings[0].why
    (tmp_path / "abc.meta").touch()
    assert find(f"{tmp_path}/abc", environ) == tmp_path / "abc.squashfs"
