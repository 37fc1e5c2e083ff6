"""Packs: samples stay together, and the same files give the same bytes."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from fairlead.base import data_list
from fairlead.base.errors import FairleadError
from fairlead.objects.dataset import Folder, described, verified
from fairlead.objects.pack import pack_shards, pack_squashfs, samples_of


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    top = tmp_path / "photos"
    for split, count in (("train", 30), ("val", 10)):
        (top / split).mkdir(parents=True)
        for n in range(count):
            (top / split / f"{n:03d}.jpg").write_bytes(bytes([n]) * 1000)
            (top / split / f"{n:03d}.seg.cls").write_text(str(n % 7))
    return top


def test_shards_hold_every_sample_whole_and_in_order(photos, tmp_path) -> None:
    out = tmp_path / "shards"
    count = pack_shards(photos, out, 8000)
    shards = sorted(path.name for path in out.glob("*.tar"))
    assert count == len(shards) and shards[0] == "train-000000.tar" and "val-000000.tar" in shards
    names = []
    for shard in (s for s in shards if s.startswith("train")):
        assert (out / shard).stat().st_size < 40_000
        with tarfile.open(out / shard) as archive:
            members = archive.getmembers()
            names += [member.name for member in members]
            assert {(m.mtime, m.uid, m.uname, m.mode) for m in members} == {(0, 0, "", 0o644)}
            keys = [name.partition(".")[0] for name in archive.getnames()]
            assert keys == sorted(keys) and len(keys) == 2 * len(set(keys))
    assert names == [f"{n:03d}.{kind}" for n in range(30) for kind in ("jpg", "seg.cls")]
    what = described(Folder(out))
    assert what.rows == 40 and verified(Folder(out)).holds


def test_same_files_give_the_same_bytes_whenever_they_were_written(photos, tmp_path) -> None:
    copy = shutil.copytree(photos, tmp_path / "copy", copy_function=shutil.copy)
    for path in copy.rglob("*"):
        os.utime(path, (1, 1))
    digests = []
    for n, top in enumerate((photos, copy)):
        pack_shards(top, tmp_path / f"out{n}", 8000, seed=3)
        digests.append(described(Folder(tmp_path / f"out{n}")).digest)
        pack_squashfs(top, tmp_path / f"out{n}.squashfs")
    assert digests[0] == digests[1]
    pack_shards(photos, tmp_path / "sorted", 8000)
    assert described(Folder(tmp_path / "sorted")).digest != digests[0]
    first, second = ((tmp_path / f"out{n}.squashfs").read_bytes() for n in (0, 1))
    assert first == second


def test_image_has_all_files_and_their_list(photos, tmp_path) -> None:
    image = tmp_path / "photos.squashfs"
    assert pack_squashfs(photos, image) == 80
    subprocess.run(
        ["unsquashfs", "-q", "-d", tmp_path / "back", image], check=True, stdout=subprocess.DEVNULL
    )
    assert verified(Folder(tmp_path / "back")).holds
    assert (tmp_path / "back/train/007.jpg").read_bytes() == b"\7" * 1000


def test_what_cannot_be_packed_is_refused_and_leaves_nothing(photos, tmp_path) -> None:
    (photos / "train" / "link").symlink_to("000.jpg")
    with pytest.raises(FairleadError) as caught:
        pack_shards(photos, tmp_path / "out", 8000)
    assert caught.value.findings[0].check == "data-pack"
    assert "train/link" in caught.value.findings[0].where
    (photos / "train" / "link").unlink()
    (tmp_path / "out").mkdir()
    for pack in (
        lambda: pack_shards(photos, tmp_path / "out", 1),
        lambda: pack_squashfs(photos, tmp_path / "out"),
    ):
        with pytest.raises(FairleadError) as caught:
            pack()
        assert caught.value.findings[0].check == "data-pack"
    (tmp_path / "none").mkdir()
    with pytest.raises(FairleadError) as caught:
        samples_of(tmp_path / "none")
    assert caught.value.findings[0].check == "data-place"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["none", "out", "photos"]


def test_damage_is_found_by_verify(photos, tmp_path) -> None:
    out = tmp_path / "shards"
    pack_shards(photos, out, 8000)
    shard = out / "train-000001.tar"
    content = bytearray(shard.read_bytes())
    content[700] ^= 1
    shard.write_bytes(content)
    (out / "val-000000.tar").unlink()
    (out / "new").write_text("")
    result = verified(Folder(out))
    assert result.wrong == ("train-000001.tar",) and not result.holds
    assert result.described.missing == ("val-000000.tar",)
    assert result.described.unlisted == ("new",)
    assert data_list.NAME not in result.described.unlisted
