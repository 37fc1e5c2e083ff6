"""SIF files, written and read back; and every way in which one can be cut short or damaged."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.base.errors import FairleadError
from fairlead.image.sif import DESCRIPTOR, HEADER, PAGE, copy_object, identity, is_sif, read_sif
from fairlead_build.formats.sif import write_sif

BODY = bytes(range(256)) * 40
DOCUMENT = json.dumps({"schema": "fairlead/image", "version": 1, "recipe": "tiny"}).encode()
EPOCH = 1_700_000_000


def make(folder: Path, body: bytes = BODY, name: str = "tiny.sif") -> Path:
    squashfs = folder / "root.squashfs"
    squashfs.write_bytes(body)
    target = folder / name
    write_sif(
        target,
        squashfs,
        ("image.json", DOCUMENT),
        arch="amd64",
        epoch=EPOCH,
        squashfs_sha256="ab" * 32,
    )
    return target


def test_sif_written_reads_back_whole(tmp_path: Path) -> None:
    sif = read_sif(make(tmp_path))
    assert (sif.arch, sif.created) == ("amd64", EPOCH)
    assert sif.uuid == str(identity("ab" * 32, DOCUMENT)) != str(identity("ab" * 32, b"{}"))
    assert [item.id for item in sif.objects] == [1, 2]
    assert sif.squashfs.offset % PAGE == 0
    out = io.BytesIO()
    copy_object(sif.path, sif.squashfs, out)
    assert out.getvalue() == BODY
    assert sif.document("image.json") == json.loads(DOCUMENT)
    assert sif.document("other.json") is None


def test_sif_written_twice_has_the_same_bytes(tmp_path: Path) -> None:
    assert make(tmp_path, name="a.sif").read_bytes() == make(tmp_path, name="b.sif").read_bytes()


def test_sif_digest_returned_is_of_the_file(tmp_path: Path) -> None:
    import hashlib

    squashfs = tmp_path / "s"
    squashfs.write_bytes(BODY)
    document = ("image.json", DOCUMENT)
    digest = write_sif(
        tmp_path / "x.sif", squashfs, document, arch="arm64", epoch=1, squashfs_sha256="00" * 32
    )
    assert digest == hashlib.sha256((tmp_path / "x.sif").read_bytes()).hexdigest()
    assert read_sif(tmp_path / "x.sif").arch == "arm64"


def test_sif_truncated_anywhere_names_both_sizes(tmp_path: Path) -> None:
    whole = make(tmp_path).read_bytes()
    sif = read_sif(tmp_path / "tiny.sif")
    second = sif.objects[1]
    interesting = {
        0,
        1,
        31,
        40,
        41,
        64,
        HEADER.size - 1,
        HEADER.size,
        PAGE - 1,
        PAGE,
        PAGE + DESCRIPTOR.size,
        PAGE + 48 * DESCRIPTOR.size - 1,
        sif.squashfs.offset - 1,
        sif.squashfs.offset,
        sif.squashfs.offset + len(BODY) // 2,
        second.offset - 1,
        second.offset,
        len(whole) - 1,
    }
    for size in interesting:
        cut = tmp_path / "cut.sif"
        cut.write_bytes(whole[:size])
        with pytest.raises(FairleadError) as caught:
            read_sif(cut)
        finding = caught.value.findings[0]
        assert finding.remedy and str(size) in finding.why, (size, finding)
        # Before the magic is complete nobody can tell that it was to be a SIF.
        assert finding.check == ("sif-truncated" if size > 40 else "sif-magic"), (size, finding)


def test_sif_other_file_is_called_no_sif(tmp_path: Path) -> None:
    path = tmp_path / "x.squashfs"
    path.write_bytes(b"hsqs" + bytes(4096))
    assert not is_sif(path)
    with pytest.raises(FairleadError, match="is not a SIF image"):
        read_sif(path)


def test_sif_missing_file_is_a_finding(tmp_path: Path) -> None:
    with pytest.raises(FairleadError, match="cannot read the image"):
        read_sif(tmp_path / "none.sif")


def test_sif_with_a_document_that_is_no_json_is_damaged(tmp_path: Path) -> None:
    path = make(tmp_path)
    offset = read_sif(path).objects[1].offset
    with path.open("r+b") as stream:
        stream.seek(offset)
        stream.write(b"\xff\xfe[")
    with pytest.raises(FairleadError, match="is damaged"):
        read_sif(path).document("image.json")


def test_sif_without_a_partition_says_so(tmp_path: Path) -> None:
    path = make(tmp_path)
    with path.open("r+b") as stream:
        stream.seek(PAGE + 4)  # the first descriptor's "used" flag
        stream.write(b"\0")
    with pytest.raises(FairleadError, match="no root file system"):
        _ = read_sif(path).squashfs


@given(
    place=st.integers(32, PAGE + 2 * DESCRIPTOR.size),
    bytes_=st.binary(min_size=1, max_size=16),
)
def test_sif_damaged_anywhere_never_ends_in_a_traceback(
    tmp_path: Path, place: int, bytes_: bytes
) -> None:
    data = bytearray(make(tmp_path).read_bytes())
    data[place : place + len(bytes_)] = bytes_
    path = tmp_path / "damaged.sif"
    path.write_bytes(data)
    try:
        sif = read_sif(path)
        for item in sif.objects:
            assert 0 <= item.offset <= item.offset + item.size <= len(data)
        copy_object(path, sif.squashfs, io.BytesIO())
        sif.document("image.json")
    except FairleadError as exc:
        assert all(f.what and f.remedy for f in exc.findings)
