"""Finding images by name, and records that anybody may have written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairlead.findings import ExitCode, FairleadError
from fairlead.image import _sound, find


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
def test_record_of_the_wrong_kind_is_told(record: dict[str, object]) -> None:
    with pytest.raises(FairleadError) as caught:
        _sound(record, Path("x.sif"))
    assert caught.value.code is ExitCode.USAGE
    assert [f.check for f in caught.value.findings] == ["image-record"]


def test_record_may_lack_anything() -> None:
    assert _sound({}, Path("x.sif")) == {}
