"""What data files must not do unseen: change values, take them from other files, lose some, or fill the memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.runtime.ml.test_data_sets import SIZES, finding, joined, made, of

from fairlead.base import data_list as listing
from fairlead.base.errors import FairleadError
from fairlead.ml.data import hdf5, manifest
from fairlead.ml.data.example import encode
from fairlead.ml.data.generate import DataSet, generate
from fairlead.ml.data.manifest import read_manifest
from fairlead.ml.data.samples import DamagedFile, ExternalFile, UnfitFile
from fairlead.ml.data.shards import Rows, Span, read
from fairlead.ml.data.tfrecord import Writer, index
from fairlead.ml.data.values import Unfit, fitted
from fairlead.ml.train.events import EventLog

SHAPE = (4, 3, 8, 8)


def hep(path: Path, **datasets: Any) -> Path:
    """An HDF5 file of four events, with these datasets in place of plain ones."""
    with h5py.File(path, "w") as file:
        plain = {"data": np.ones(SHAPE, "f4"), "label": np.ones(4)}
        for name, values in (plain | datasets).items():
            file[name] = values
    return path


def refused(folder: Path, error: type[DamagedFile], **how: Any) -> str:
    """Why the one training file of a folder is refused when all of it is read; ``skip_damaged`` would leave it out."""
    with pytest.raises(FairleadError) as caught:
        read_manifest(folder, "train", verify=True, **how)
    checks = {UnfitFile: "data-unfit", ExternalFile: "data-external", DamagedFile: "data-damaged"}
    assert finding(caught).check == checks[error]
    return finding(caught).why


# --- values ---------------------------------------------------------------------------------------


@given(st.data())
def test_value_that_fits_stays_and_any_other_is_named(data: Any) -> None:
    kinds = ("i1", "u1", "i2", "i4", "u4", "i8", "u8", "f2", "f4", "f8")
    source = np.dtype(data.draw(st.sampled_from(kinds)))
    target = np.dtype(data.draw(st.sampled_from(("i4", "f4", "i2"))))
    numbers = st.floats(width=8 * source.itemsize) if source.kind == "f" else st.integers(
        int(np.iinfo(source).min), int(np.iinfo(source).max)
    )  # fmt: skip
    near = [2.0**31, 2.0**31 - 1, -(2.0**31), -(2.0**31) - 1, 0.5, 1e39, 32768.0, 2.0**40]
    exact = st.sampled_from([x for x in near if source.kind == "f" and source.itemsize > 2] or [1])
    values = np.array(data.draw(st.lists(numbers | exact, min_size=1, max_size=5)), source)

    def holds(value: Any) -> bool:
        number = value.item()
        if target.kind == "i":
            return number == number and abs(number) != float("inf") and int(number) == number and (
                int(np.iinfo(target).min) <= int(number) <= int(np.iinfo(target).max)
            )  # fmt: skip
        with np.errstate(all="ignore"):
            return bool(np.isfinite(np.array(value).astype(target)))

    bad = [row for row, value in enumerate(values) if not holds(value)]
    try:
        cast = fitted(values[:, None], target)
    except Unfit as exc:
        assert bad and exc.row == bad[0]
    else:
        assert not bad and cast.dtype == target
        if target.kind == "i":
            assert [int(x) for x in cast[:, 0]] == [int(x) for x in values]


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (np.array([0, 1, np.nan, 1]), "row 2 of `label` is nan, which int32 cannot hold"),
        (np.array([0, 2**40, 0, 1]), "row 1 of `label` is 1099511627776, which int32 cannot hold"),
        (np.array([0, 1, 1, 0.5], "f4"), "row 3 of `label` is 0.5, which int32 cannot hold"),
        (np.array([np.inf, 1, 1, 1]), "row 0 of `label` is inf, which int32 cannot hold"),
    ],
)
def test_label_that_its_type_cannot_hold_is_named(tmp_path: Path, labels: Any, said: str) -> None:
    hep(tmp_path / "train.h5", label=labels)
    assert refused(tmp_path, UnfitFile) == said
    with pytest.raises(UnfitFile) as caught:
        list(Rows(tmp_path, "train", 0, 1).shuffled(4, 1, 0))
    assert said in finding(caught).why


@pytest.mark.parametrize(
    ("value", "kind", "said"),
    [
        (np.nan, "f4", "nan, which is not finite"),
        (-np.inf, "f2", "-inf, which is not finite"),
        (1e300, "f8", "1e+300, which float32 cannot hold"),
    ],
)
def test_input_that_is_not_finite_is_named(
    tmp_path: Path, value: float, kind: str, said: str
) -> None:
    inputs = np.ones(SHAPE, kind)
    inputs[2, 1, 3, 3] = value
    hep(tmp_path / "train.h5", data=inputs)
    assert refused(tmp_path, UnfitFile) == f"row 2 of `data` is {said}"
    with pytest.raises(UnfitFile):
        list(Rows(tmp_path, "train", 0, 1).in_order(4))


def test_parameter_that_is_not_finite_is_named_in_a_record(tmp_path: Path) -> None:
    records = [
        {"x": np.zeros(64, "<i2").tobytes(), "y": np.array([1, 2, y, 4], np.float32)}
        for y in (3, np.nan)
    ]
    with (tmp_path / "train.tfrecord").open("wb") as stream, Writer(stream) as out:
        for record in records:
            out.write(encode(record))
    assert refused(tmp_path, UnfitFile) == "row 1 of `y` is nan, which is not finite"
    with pytest.raises(UnfitFile):
        list(Rows(tmp_path, "train", 0, 1).in_order(2))


def test_file_with_a_value_that_does_not_fit_can_be_left_out(tmp_path: Path) -> None:
    hep(tmp_path / "train_1.h5", label=np.array([0, np.nan, 0, 0]))
    hep(tmp_path / "train_2.h5")
    found = read_manifest(tmp_path, "train", verify=True, skip_damaged=True)
    assert [damage.path.name for damage in found.damaged] == ["train_1.h5"] and found.total == 4


# --- values in other files ------------------------------------------------------------------------


def external(path: Path, bytes_there: int) -> None:
    raw = path.parent / "raw"
    raw.write_bytes(bytes(np.ones(bytes_there // 4, "f4").data))
    with h5py.File(path, "w") as file:
        where = [(str(raw), 0, h5py.h5f.UNLIMITED)]
        file.create_dataset("data", SHAPE, "f4", external=where)
        file["label"] = np.ones(4)


def linked(path: Path, there: bool = True, soft: bool = False) -> None:
    if there:
        hep(path.parent / "other.h5")
    target = h5py.ExternalLink(str(path.parent / "other.h5"), "/data")
    with h5py.File(path, "w") as file:
        file["hidden" if soft else "data"] = target
        if soft:
            file["data"] = h5py.SoftLink("/hidden")
        file["label"] = np.ones(4)


def virtual(path: Path, rows: int, there: bool = True) -> None:
    """A virtual dataset of which another file has ``rows`` rows."""
    if there:
        hep(path.parent / "other.h5", data=np.ones((rows, *SHAPE[1:]), "f4"))
    layout = h5py.VirtualLayout(SHAPE, "f4")
    layout[:] = h5py.VirtualSource("other.h5", "data", SHAPE)
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("data", layout)
        file["label"] = np.ones(4)


def partly_used(path: Path) -> None:
    """A virtual dataset of rows 1 to 4 of a file that has rows 0 to 3."""
    hep(path.parent / "other.h5")
    layout = h5py.VirtualLayout(SHAPE, "f4")
    layout[:] = h5py.VirtualSource("other.h5", "data", (5, *SHAPE[1:]))[1:]
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("data", layout)
        file["label"] = np.ones(4)


def partly_mapped(path: Path) -> None:
    hep(path.parent / "other.h5")
    layout = h5py.VirtualLayout(SHAPE, "f4")
    layout[:2] = h5py.VirtualSource("other.h5", "data", SHAPE)[:2]
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("data", layout)
        file["label"] = np.ones(4)


WHOLE = int(np.prod(SHAPE)) * 4


@pytest.mark.parametrize(
    "make",
    [
        lambda path: external(path, WHOLE),
        linked,
        lambda path: linked(path, soft=True),
        lambda path: virtual(path, 4),
    ],
)
def test_values_in_other_files_are_refused_unless_asked_for(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "train.h5")
    why = refused(tmp_path, ExternalFile)
    assert "` is in" in why and ("raw" in why or "other.h5" in why)
    asked = read_manifest(tmp_path, "train", verify=True, external=True)
    assert joined(Rows(asked, "train", 0, 1).in_order(4)).inputs.sum() == WHOLE / 4


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: external(path, WHOLE - 4), "lacks 4 bytes"),
        (lambda path: linked(path, there=False), "altered or of another kind"),
        (lambda path: virtual(path, 4, there=False), "there is no such file"),
        (lambda path: virtual(path, 3), "it is (3, 3, 8, 8), which is less"),
        (partly_used, "it is (4, 3, 8, 8), which is less"),
        (partly_mapped, f"without a source for {WHOLE // 8} values"),
    ],
)
def test_values_that_other_files_lack_are_not_read_as_zeros(
    tmp_path: Path, make: Callable[[Path], None], said: str
) -> None:
    make(tmp_path / "train.h5")
    assert said in refused(tmp_path, DamagedFile, external=True)


def test_link_into_a_fifo_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "other.h5")
    linked(tmp_path / "train.h5", there=False)
    assert "other.h5" in refused(tmp_path, ExternalFile)


def test_links_within_the_file_are_followed_unless_they_are_a_circle(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "train.h5", "w") as file:
        file["deep/events"] = np.ones(SHAPE, "f4")
        file["deep/way"] = h5py.SoftLink("events")
        file["data"] = h5py.SoftLink("/deep/way")
        file["label"] = np.ones(4)
    assert read_manifest(tmp_path, "train", verify=True).total == 4
    with h5py.File(tmp_path / "train.h5", "a") as file:
        del file["data"]
        file["data"] = h5py.SoftLink("/data")
    assert "soft links" in refused(tmp_path, DamagedFile)


# --- values that are not there ----------------------------------------------------------------------


def test_chunks_that_were_never_written_are_counted(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "train.h5", "w") as file:
        file.create_dataset("data", SHAPE, "f4", chunks=(1, *SHAPE[1:]))[1] = 1
        file["label"] = np.ones(4)
    assert "`data` has 1 of 4 chunks" in refused(tmp_path, DamagedFile)
    with h5py.File(tmp_path / "train.h5", "w") as file:
        file.create_dataset("data", SHAPE, "f4")
        file["label"] = np.ones(4)
    assert "`data` was never written" in refused(tmp_path, DamagedFile)


def test_filter_that_is_not_there_is_named(tmp_path: Path) -> None:
    hep(tmp_path / "train.h5")
    with h5py.File(tmp_path / "train.h5", "a") as file:
        del file["data"]
        file.create_dataset("data", data=np.ones(SHAPE, "f4"), chunks=SHAPE, shuffle=True)
    content = (tmp_path / "train.h5").read_bytes()
    # Of the message of filters: the number of shuffle, 2, the length of its name, flags and a count.
    at = content.rindex(b"\x02\x00\x08\x00\x01\x00\x01\x00shuffle")
    other = content[:at] + (31999).to_bytes(2, "little") + content[at + 2 :]
    (tmp_path / "train.h5").write_bytes(other)
    assert "filter 31999" in refused(tmp_path, DamagedFile)


@pytest.mark.parametrize("erased", ["data", "label"])
def test_chunk_that_was_zeroed_is_found(tmp_path: Path, erased: str) -> None:
    job = next(of("hep", "hdf5").jobs(tmp_path))
    listing.write_list(tmp_path, [job.run()])
    with h5py.File(job.path) as file:
        chunk = file[erased].id.get_chunk_info(0)
    content = bytearray(job.path.read_bytes())
    content[chunk.byte_offset : chunk.byte_offset + chunk.size] = bytes(chunk.size)
    job.path.write_bytes(content)
    with h5py.File(job.path) as file:
        assert not file[erased][()].any()  # Fletcher-32 is silent
    assert "sha256" in refused(tmp_path, DamagedFile)
    (tmp_path / listing.NAME).unlink()
    if erased == "data":
        assert "zeros, for which Fletcher-32 is zero" in refused(tmp_path, DamagedFile)


@pytest.mark.parametrize("erased", ["data", "label"])
@pytest.mark.parametrize("has_list", [True, False])
def test_chunk_that_was_zeroed_is_found_where_its_rows_are_read(
    tmp_path: Path, erased: str, has_list: bool
) -> None:
    """Without `verify`. Where no list has a digest, zeros of labels may be a class."""
    job = next(of("hep", "hdf5").jobs(tmp_path))
    entry = job.run()
    if has_list:
        listing.write_list(tmp_path, [entry])
    with h5py.File(job.path) as file:
        chunk = file[erased].id.get_chunk_info(0)
    content = bytearray(job.path.read_bytes())
    content[chunk.byte_offset : chunk.byte_offset + chunk.size] = bytes(chunk.size)
    state = job.path.stat()
    job.path.write_bytes(content)
    os.utime(job.path, ns=(state.st_atime_ns, state.st_mtime_ns))
    span = Span(job.path, 0, 2, sha256=entry.sha256 if has_list else "")
    if erased == "label" and not has_list:
        assert not read(span).targets.any()
        return
    with pytest.raises(DamagedFile) as caught:
        read(span)
    assert "zeros, for which Fletcher-32 is zero" in str(caught.value.findings[0])
    assert ("its sha256 is not" if has_list else "list the files") in str(caught.value.findings[0])


def test_labels_of_the_first_class_that_fill_a_chunk_are_read_where_the_digest_is_right(
    tmp_path: Path,
) -> None:
    with h5py.File(tmp_path / "train.h5", "w") as file:
        data = np.random.default_rng(1).normal(size=SHAPE).astype("f4")
        file.create_dataset("data", data=data, chunks=(1, *SHAPE[1:]), fletcher32=True)
        file.create_dataset("label", data=np.zeros(4, "i4"), chunks=(2,), fletcher32=True)
    digest = listing.sha256(tmp_path / "train.h5")
    assert not read(Span(tmp_path / "train.h5", 0, 4, sha256=digest)).targets.any()
    with pytest.raises(DamagedFile):
        read(Span(tmp_path / "train.h5", 0, 4, sha256="0" * 64))


@pytest.mark.parametrize("filters", [{}, {"shuffle": True}, {"compression": "lzf"}])
def test_chunk_that_was_zeroed_is_found_behind_every_filter_that_lets_zeros_pass(
    tmp_path: Path, filters: dict[str, Any]
) -> None:
    path, chunk = tmp_path / "train.h5", (1, *SHAPE[1:])
    data = np.random.default_rng(1).normal(size=SHAPE).astype("f4")  # lzf stores it as it is
    with h5py.File(path, "w") as file:
        file.create_dataset("data", data=data, chunks=chunk, fletcher32=True, **filters)
        file["label"] = np.ones(4)
    with h5py.File(path) as file:
        assert hdf5.zeroed(file["data"]) is None
        place = file["data"].id.get_chunk_info(2)
    content = bytearray(path.read_bytes())
    content[place.byte_offset : place.byte_offset + place.size] = bytes(place.size)
    path.write_bytes(content)
    with h5py.File(path) as file:
        assert not file["data"][2].any()  # Fletcher-32 is silent
    assert "zeros, for which Fletcher-32 is zero" in refused(tmp_path, DamagedFile)


def test_zeros_that_are_meant_are_read_once_they_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with h5py.File(tmp_path / "train.h5", "w") as file:
        chunk = (1, *SHAPE[1:])
        file.create_dataset("data", data=np.zeros(SHAPE, "f4"), chunks=chunk, fletcher32=True)
        file["label"] = np.ones(4)
    assert "fairlead.ml.data.manifest FOLDER" in refused(tmp_path, DamagedFile)
    monkeypatch.setattr(sys, "argv", ["manifest", str(tmp_path)])
    manifest.main()
    assert capsys.readouterr().out == f"{tmp_path}/data.json: 1 files\n"
    found = read_manifest(tmp_path, "train", verify=True)
    assert found.total == 4 and found.listed


# --- the list of files ------------------------------------------------------------------------------


def listed_folder(folder: Path, form: str) -> list[Path]:
    data = of("hep", form)
    listing.write_list(folder, [job.run() for job in data.jobs(folder)])
    return sorted(folder.glob("*train*"))


@pytest.mark.parametrize("form", ["tfrecord", "tfrecord-gzip"])
def test_file_cut_where_a_record_ends_is_not_shorter_but_damaged(tmp_path: Path, form: str) -> None:
    first = listed_folder(tmp_path, form)[0]
    plain = tmp_path / "plain"
    if form == "tfrecord":
        first.write_bytes(first.read_bytes()[: index(first)[5]])
    else:
        import gzip

        plain.write_bytes(gzip.decompress(first.read_bytes()))
        first.write_bytes(gzip.compress(plain.read_bytes()[: index(plain)[5]]))
    for verify in (False, True):
        with pytest.raises(FairleadError) as caught:
            read_manifest(tmp_path, "train", verify=verify)
        assert "it has 5 samples in" in finding(caught).why and "lists 9 in" in finding(caught).why
    found = read_manifest(tmp_path, "train", skip_damaged=True)
    assert found.listed and [damage.path for damage in found.damaged] == [first]


@pytest.mark.parametrize("change", ["missing", "more"])
def test_folder_whose_files_are_not_those_listed_is_refused(tmp_path: Path, change: str) -> None:
    first = listed_folder(tmp_path, "hdf5")[0]
    other = first if change == "missing" else first.with_name("hep_train_99999.h5")
    if change == "missing":
        first.unlink()
    else:
        other.write_bytes(first.read_bytes())
    for skip in (False, True):
        with pytest.raises(FairleadError) as caught:
            read_manifest(tmp_path, "train", skip_damaged=skip)
        assert finding(caught).check == "data-list" and other.name in finding(caught).why


def test_same_file_with_other_bytes_is_found_by_its_digest(tmp_path: Path) -> None:
    one, two, *_ = listed_folder(tmp_path, "tfrecord")
    one.write_bytes(two.read_bytes())  # whole, as long, and another's
    assert read_manifest(tmp_path, "train").total == 23
    assert "sha256" in refused(tmp_path, DamagedFile)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"\xff", b'{"schema": 1}', b"9" * 400, b'{"schema": "other", "version": 1, "files": []}'],
)  # fmt: skip
def test_damaged_list_is_named(tmp_path: Path, content: bytes) -> None:
    listed_folder(tmp_path, "hdf5")
    (tmp_path / listing.NAME).write_bytes(content)
    with pytest.raises(FairleadError) as caught:
        read_manifest(tmp_path, "train")
    assert finding(caught).check == "data-list" and str(tmp_path) in finding(caught).remedy


def test_generated_data_are_listed_and_other_sets_of_the_folder_stay(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    for kind in ("hep", "gratings"):
        data = DataSet(train=4, val=2, per_shard=2, kind=kind, size=SIZES[kind])
        generate(data, tmp_path, 1, log)
    entries = listing.read_list(tmp_path)
    assert entries is not None and len(entries) == 6
    assert {e.sha256 for e in entries.values()} == {listing.sha256(tmp_path / n) for n in entries}
    before = (tmp_path / listing.NAME).read_bytes()
    (tmp_path / listing.NAME).write_bytes(b"damaged")
    generate(data, tmp_path, 1, log)  # whole files are kept; the list is not
    again = listing.read_list(tmp_path)
    assert again == {n: e for n, e in entries.items() if n.startswith("gratings")} and before


def test_folder_without_a_list_says_so(tmp_path: Path) -> None:
    made(tmp_path, of("hep", "hdf5"))
    assert not read_manifest(tmp_path, "train").listed


# --- memory -----------------------------------------------------------------------------------------
