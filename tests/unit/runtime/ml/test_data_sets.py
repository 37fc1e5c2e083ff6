"""Samples of every data set, in every form of file: written, recognised, shared out, resumed, damaged."""

from __future__ import annotations

import dataclasses
import math
import threading
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.base.errors import FairleadError
from fairlead.ml import registry
from fairlead.ml.data import files, formats
from fairlead.ml.data.example import decode, encode
from fairlead.ml.data.generate import DataSet, generate
from fairlead.ml.data.manifest import Manifest, Shard, find_shards, read_manifest
from fairlead.ml.data.samples import DamagedFile, Draw, Layout, Samples
from fairlead.ml.data.shards import Rows, read
from fairlead.ml.data.tfrecord import Compression, Writer, index, records
from fairlead.ml.train.events import EventLog

SIZES = {"hep": 12, "cosmo": 8, "cosmo-mlperf": 8, "gratings": 10}
KINDS = registry.data_kinds()
SMALL = DataSet(train=23, val=5, per_shard=9, seed=4)
EVERY = [(kind, form) for kind in KINDS for form in files.FORMATS]


def of(kind: str, form: str, **more: Any) -> DataSet:
    return dataclasses.replace(SMALL, kind=kind, format=form, size=SIZES[kind], **more)


def made(folder: Path, data: DataSet) -> Path:
    """``data`` in a folder, written by this process: starting another takes longer than the writing."""
    for job in data.jobs(folder):
        job.run()
    return folder


def joined(batches: Any) -> Samples:
    held = list(batches)
    return Samples(
        np.concatenate([b.inputs for b in held]), np.concatenate([b.targets for b in held])
    )


def same(first: Samples, second: Samples) -> bool:
    pairs = ((first.inputs, second.inputs), (first.targets, second.targets))
    return all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in pairs)


def finding(raised: pytest.ExceptionInfo[FairleadError]) -> Any:
    found = raised.value.findings[0]
    assert found.where and found.why and found.remedy and found.check
    return found


# --- writing ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "form"), EVERY)
def test_what_was_generated_is_read_back(tmp_path: Path, kind: str, form: str) -> None:
    made(tmp_path, of(kind, form))
    rows = Rows(tmp_path, "train", 0, 1)
    parts = [KINDS[kind].make(4, "train", i, n, SIZES[kind]) for i, n in enumerate((9, 9, 5))]
    whole = joined(parts)
    assert same(joined(rows.in_order(4)), whole)
    assert (rows.total, rows.layout.data_set) == (23, KINDS[kind].data_set)
    assert rows.layout.input_shape == whole.inputs.shape[1:]
    assert same(read(rows.spans[2]), parts[2])


@pytest.mark.parametrize(("kind", "form"), EVERY)
def test_bytes_of_a_file_do_not_depend_on_who_writes_it(
    tmp_path: Path, kind: str, form: str
) -> None:
    data = of(kind, form)
    first = {job.path.name: job for job in data.jobs(tmp_path / "1")}
    second = {job.path.name: job for job in data.jobs(tmp_path / "2")}
    for name in first:
        first[name].run()
    for name in reversed(second):
        second[name].run()
    for name in first:
        assert first[name].path.read_bytes() == second[name].path.read_bytes()


def test_bytes_do_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    data = of("cosmo", "tfrecord-gzip")
    log = EventLog(tmp_path / "events.jsonl")
    generate(data, tmp_path / "1", 1, log)
    generate(data, tmp_path / "3", 3, log)
    names = sorted(path.name for path in (tmp_path / "1").glob("cosmo*"))
    assert len(names) == 4
    for name in names:
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "3" / name).read_bytes()


def test_generation_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    data = of("gratings", "tfrecord")
    made(tmp_path, data)
    before = {path: path.read_bytes() for path in tmp_path.glob("gratings*")}
    torn, gone, kept, val = sorted(before)
    stamp = kept.stat().st_mtime_ns
    torn.write_bytes(before[torn][:-1])
    gone.unlink()
    val.write_bytes(before[kept])  # whole, and another's
    (tmp_path / ".gratings_val_00000.tfrecord.x.partial").write_bytes(b"half")
    (tmp_path / "gratings_train_00000.h5").write_bytes(b"another format")
    (tmp_path / "hep_train_00000.h5").write_bytes(b"another data set")
    generate(data, tmp_path, 1, EventLog(tmp_path / "events.jsonl"))
    assert {path: path.read_bytes() for path in tmp_path.glob("*gratings*")} == before
    assert kept.stat().st_mtime_ns == stamp
    assert (tmp_path / "hep_train_00000.h5").exists()


@pytest.mark.parametrize("form", files.FORMATS)
def test_file_cut_short_is_not_taken_for_whole(tmp_path: Path, form: str) -> None:
    job = next(of("hep", form).jobs(tmp_path))
    job.run()
    assert files.is_whole(job.path, job.identity, 9)
    assert not files.is_whole(job.path, job.identity, 8)
    assert not files.is_whole(job.path, job.identity + " ", 9)
    whole = job.path.read_bytes()
    for size in (0, 5, len(whole) // 2, len(whole) - 1):
        job.path.write_bytes(whole[:size])
        assert not files.is_whole(job.path, job.identity, 9)
    job.path.unlink()
    assert not files.is_whole(job.path, job.identity, 9)


def test_hep_files_have_the_published_names(tmp_path: Path) -> None:
    made(tmp_path, of("hep", "hdf5"))
    with h5py.File(tmp_path / "hep_train_00000.h5") as file:
        assert list(file) == ["data", "label", "normweight", "psr", "weight"]
        assert file["data"].dtype == np.float32 and file["data"].shape == (9, 3, 12, 12)
    made(tmp_path, of("hep", "tfrecord"))
    (first,) = records(tmp_path / "hep_train_00000.tfrecord", 0, 1)
    names = {"data", "label", "normweight", "psr", "weight", "identity"}
    assert decode(first).keys() == names


# --- recognising ------------------------------------------------------------------------------


def tfrecord(path: Path, *messages: dict[str, Any], how: Compression = Compression.NONE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as stream, Writer(stream, how) as out:
        for message in messages:
            out.write(encode(message))
    return path


def one_of(path: Path) -> Samples:
    found = files.opened(path)
    out = found.layout().empty(1)
    found.hold(0, 1)(np.zeros(1, np.int64), out, 0, [Draw()])
    return out


@pytest.mark.parametrize("channels", [1, 4])
@pytest.mark.parametrize("how", Compression)
def test_mlperf_samples_are_read(tmp_path: Path, channels: int, how: Compression) -> None:
    x = np.random.default_rng(0).integers(0, 999, (8, 8, 8, channels), np.int16)
    y = np.array([0.5, -0.25, 1, 0], np.float32)
    path = tfrecord(tmp_path / "univ.tfrecord", {"x": x.tobytes(), "y": y}, how=how)
    assert same(one_of(path), Samples(x[None], y[None]))


def test_generated_universes_at_four_redshifts_lie_as_mlperf_has_them(tmp_path: Path) -> None:
    data = dataclasses.replace(of("cosmo-mlperf", "tfrecord-gzip"), train=5, val=2, per_shard=1)
    for job in data.jobs(tmp_path / "made"):
        job.run()
    for split, folder in (("train", "train"), ("val", "validation")):  # as published
        (tmp_path / "data" / folder).mkdir(parents=True)
        for number, path in enumerate(sorted((tmp_path / "made").glob(f"*_{split}_*"))):
            path.rename(tmp_path / "data" / folder / f"univ_ics_2019-03_a{number}.tfrecord.gz")
    (message,) = records(tmp_path / "data/train/univ_ics_2019-03_a0.tfrecord.gz", 0, 1)
    features = decode(message)
    assert len(features["x"][0]) == 2 * 8**3 * 4 and features["y"].shape == (4,)
    manifest = read_manifest(tmp_path / "data", "train", verify=True)
    assert (manifest.total, len(manifest.shards)) == (5, 5)
    assert (manifest.layout.input_shape, manifest.layout.input_dtype) == ((8, 8, 8, 4), "int16")
    assert (manifest.layout.target_shape, manifest.layout.target_dtype) == ((4,), "float32")
    wanted = KINDS["cosmo-mlperf"].make(4, "val", 1, 1, 8)
    held = joined(Rows(tmp_path / "data", "val", 0, 1).in_order(2))
    assert np.array_equal(held.inputs[1], wanted.inputs[0])
    assert np.array_equal(held.targets[1], wanted.targets[0])


def test_files_of_large_samples_hold_few_unless_asked(tmp_path: Path) -> None:
    jobs = {k: list(DataSet(40, 1, kind=k).jobs(tmp_path)) for k in ("cosmo", "cosmo-mlperf")}
    assert [j.events for j in jobs["cosmo"]] == [40, 1]
    assert [j.events for j in jobs["cosmo-mlperf"]] == [16, 16, 8, 1]
    assert {j.size for j in jobs["cosmo-mlperf"]} == {128}
    assert [j.events for j in DataSet(40, 1, 40, kind="cosmo-mlperf").jobs(tmp_path)] == [40, 1]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("parameters", [2, 3])
def test_sc18_samples_are_read_in_either_precision(
    tmp_path: Path, dtype: Any, parameters: int
) -> None:
    voxels = np.random.default_rng(0).uniform(0, 9, (8, 8, 8)).astype(np.float32)
    labels = np.linspace(0.1, 0.9, parameters).astype(np.float32)
    message = {
        "data_raw": voxels.astype(dtype).tobytes(),
        "label_raw": labels.astype(dtype).tobytes(),
    }
    path = tfrecord(tmp_path / "7.tfrecord", message)
    assert same(one_of(path), Samples(voxels[None, ..., None], labels[None]))


def test_universe_of_one_hdf5_file_is_a_sample(tmp_path: Path) -> None:
    full = np.arange(8 * 8 * 8 * 4, dtype=np.int16).reshape(8, 8, 8, 4)
    for name in ("a", "b"):
        with h5py.File(tmp_path / f"train_{name}.hdf5", "w") as file:
            file["full"], file["unitPar"] = full, np.array([0.1, 0.2, 0.3, 0.4])
            file["namePar"] = np.array([b"Omega_m"])
    rows = Rows(tmp_path, "train", 0, 1)
    assert (rows.total, rows.layout.target_dtype) == (2, "float32")
    np.testing.assert_array_equal(joined(rows.in_order(2)).inputs[1], full)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"x": bytes(2 * 7), "y": np.zeros(4, np.float32)}, "neither a cube nor four"),
        ({"x": bytes(2 * 27), "y": b"abcd"}, "`y` is not a list of floats"),
        ({"x": b"odd", "y": np.zeros(4, np.float32)}, "3 bytes"),
        ({"data": bytes(4 * 3 * 5), "label": np.array([1])}, "not three squares"),
        ({"data": bytes(4 * 3 * 4), "label": np.array([2**40])}, "not a class"),
        ({"data": bytes(4 * 3 * 4), "label": np.array([1, 2])}, "not one integer"),
        ({"data": [b"", b""], "label": np.array([1])}, "not one byte string"),
        ({"image": bytes(4 * 3 * 5), "label": np.array([1])}, "not a square"),
        ({"data_raw": bytes(4 * 9), "label_raw": bytes(12)}, "neither float32 nor float64"),
        ({"data_raw": bytes(4 * 8), "label_raw": bytes(4 * 64)}, "64 parameters"),
    ],
)
def test_record_that_is_no_sample_is_named(
    tmp_path: Path, message: dict[str, Any], said: str
) -> None:
    path = tfrecord(tmp_path / "train.tfrecord", message)
    with pytest.raises(FairleadError) as caught:
        read_manifest(tmp_path, "train")
    assert said in finding(caught).why and "record 0" in finding(caught).why
    assert finding(caught).where == str(path)


def test_unknown_names_are_listed_with_what_was_looked_for(tmp_path: Path) -> None:
    tfrecord(tmp_path / "train.tfrecord", {"pixels": b"", "class": np.array([1])})
    with h5py.File(tmp_path / "val.h5", "w") as file:
        file["pixels"] = np.zeros(3)
    for split, container in (("train", "TFRecord"), ("val", "HDF5")):
        with pytest.raises(FairleadError) as caught:
            read_manifest(tmp_path, split)
        assert finding(caught).check == "data-form"
        assert "`pixels`" in finding(caught).why
        assert formats.looked_for(container) in finding(caught).why


@pytest.mark.parametrize(
    "content", [b"", b"a text that is long enough", b"\x89HDF\r\n\x1a\n" + b"\0" * 90]
)
def test_file_of_no_known_container_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "train.tfrecord"
    path.write_bytes(content)
    with pytest.raises(FairleadError) as caught:
        read_manifest(tmp_path, "train")
    assert finding(caught).where == str(path)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"data": np.zeros((3, 3, 4, 4)), "label": np.zeros(2)}, "`label` is float64 (2,)"),
        ({"data": np.zeros(3), "label": np.zeros(3)}, "`data` is float64 (3,)"),
        ({"data": np.array([[b"text"]]), "label": np.zeros(1)}, "`data` is |S4 (1, 1)"),
        ({"data/inner": np.zeros((1, 1)), "label": np.zeros(1)}, "`data` is no dataset ()"),
        ({"data": (1, 2**33), "label": np.zeros(1)}, "a sample of 34359738368 bytes"),
    ],
)
def test_hdf5_of_odd_contents_is_named(tmp_path: Path, columns: dict[str, Any], said: str) -> None:
    with h5py.File(tmp_path / "train.h5", "w") as file:
        for name, values in columns.items():
            if isinstance(values, tuple):  # of this shape, and nowhere written
                file.create_dataset(name, values, "f4", chunks=(1, 1024))
            else:
                file[name] = values
    with pytest.raises(FairleadError) as caught:
        read_manifest(tmp_path, "train")
    assert said in finding(caught).why


def test_files_of_two_kinds_are_refused(tmp_path: Path) -> None:
    made(tmp_path, of("hep", "hdf5"))
    made(tmp_path, of("gratings", "hdf5"))
    with pytest.raises(FairleadError) as caught:
        read_manifest(tmp_path, "train", skip_damaged=True)
    assert finding(caught).check == "data-form"
    assert "hep float32[3, 12, 12] among gratings" in finding(caught).why
    made(tmp_path / "two", of("hep", "hdf5"))
    made(tmp_path / "two", of("hep", "tfrecord"))
    with pytest.raises(FairleadError, match="have different formats"):
        read_manifest(tmp_path / "two", "train")


def test_records_of_two_shapes_are_named_when_they_are_read(tmp_path: Path) -> None:
    small, large = ({"x": bytes(2 * n**3), "y": np.zeros(4, np.float32)} for n in (4, 6))
    path = tfrecord(tmp_path / "train.tfrecord", small, large)
    rows = Rows(tmp_path, "train", 0, 1)
    with pytest.raises(DamagedFile) as caught:
        list(rows.in_order(2))
    assert "record 1 is (6, 6, 6, 1), not (4, 4, 4, 1)" in finding(caught).why
    with pytest.raises(FairleadError) as caught:
        read_manifest(tmp_path, "train", verify=True)
    assert finding(caught).where == str(path)


@pytest.mark.parametrize(
    ("names", "train"),
    [
        (["a_train_1.h5", "b_train.hdf5", "a_val.h5"], 2),
        (["train/1.tfrecord", "train/2.tfrecord.gz", "validation/1.tfrecord"], 2),
        (["train-00000-of-00002", "train-00001-of-00002", "validation-00000-of-00001"], 2),
        (["train/x.tfrecords", "train/README", ".train.h5", "val/x.tfr", "train.json"], 1),
    ],
)
def test_files_of_a_split_are_found(tmp_path: Path, names: list[str], train: int) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert len(find_shards(tmp_path, "train")) == train
    assert len(find_shards(tmp_path, "val")) == 1


def test_files_by_name_and_by_folder_are_ambiguous(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "1.h5").touch()
    (tmp_path / "train_1.h5").touch()
    with pytest.raises(FairleadError) as caught:
        find_shards(tmp_path, "train")
    assert "train_1.h5" in finding(caught).why
    with pytest.raises(FairleadError) as caught:
        find_shards(tmp_path, "val")
    assert finding(caught).check == "data-missing"


def test_file_of_both_splits_is_refused(tmp_path: Path) -> None:
    (tmp_path / "constrained_val.h5").touch()
    for split in ("train", "val"):
        with pytest.raises(FairleadError, match="both train and val") as caught:
            find_shards(tmp_path, split)
        assert finding(caught).where == str(tmp_path / "constrained_val.h5")


# --- sharing out ------------------------------------------------------------------------------

LAYOUT = Layout("hep", (3, 4, 4), "float32", (), "int32")


def manifest(counts: list[int], split: str = "train") -> Manifest:
    shards = tuple(Shard(Path(f"{n}.h5"), count) for n, count in enumerate(counts))
    return Manifest(split, next(formats.forms()), LAYOUT, shards)


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=12),
    st.integers(1, 30),
    st.integers(1, 20_000),
)
def test_shares_are_all_rows_once_in_order_and_even(
    counts: list[int], ranks: int, piece_bytes: int
) -> None:
    of_all = manifest(counts)
    shares = [Rows(of_all, "train", rank, ranks, piece_bytes=piece_bytes) for rank in range(ranks)]
    flat = [
        (span.path, row, span.first + row - span.start)
        for share in shares
        for span in share.spans
        for row in range(span.start, span.stop)
    ]
    wanted = [(Path(f"{n}.h5"), row) for n, count in enumerate(counts) for row in range(count)]
    assert [(path, row) for path, row, _ in flat] == wanted
    assert [number for _, _, number in flat] == list(range(len(wanted)))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    most = max(piece_bytes // LAYOUT.bytes, 1)
    assert all(0 < len(span) <= most for share in shares for span in share.spans)
    assert {share.batches_per_epoch(3) for share in shares} == {min(sizes) // 3}


@pytest.fixture(scope="module")
def gratings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("gratings"), of("gratings", "tfrecord", train=61))


def numbers(rows: Rows, batches: Any) -> list[list[int]]:
    """The number of each sample among all of its split, batch by batch."""
    everything = joined(Rows(rows.manifest, "train", 0, 1).in_order(64)).inputs
    flat = {pixels.tobytes(): number for number, pixels in enumerate(everything)}
    return [[flat[pixels.tobytes()] for pixels in batch.inputs] for batch in batches]


def test_shuffled_epochs_of_all_ranks_are_the_rows_of_a_published_order(gratings: Path) -> None:
    """The order of files and rows is what it was when only HEP-CNN's HDF5 was read."""
    for rank in range(3):
        rows = Rows(gratings, "train", rank, 3)
        assert len(rows.spans) > 2
        for epoch in range(2):
            rng = np.random.default_rng(np.random.SeedSequence(7, spawn_key=(epoch,)))
            wanted: list[int] = []
            for place in rng.permutation(len(rows.spans)):
                span = rows.spans[place]
                wanted += (span.first + rng.permutation(len(span))).tolist()
            found = numbers(rows, rows.shuffled(4, 7, epoch))
            assert [n for batch in found for n in batch] == wanted[:20]


@pytest.mark.parametrize("piece_bytes", [1, 3000, 10**9])
@pytest.mark.parametrize(("rank", "ranks"), [(0, 1), (2, 4)])
def test_epoch_begun_in_the_middle_goes_on_as_the_whole_one(
    gratings: Path, rank: int, ranks: int, piece_bytes: int
) -> None:
    rows = Rows(gratings, "train", rank, ranks, piece_bytes=piece_bytes)
    whole = list(rows.shuffled(3, seed=5, epoch=1))
    assert len(whole) == rows.batches_per_epoch(3)
    for first in range(len(whole) + 2):
        rest = list(rows.shuffled(3, seed=5, epoch=1, first=first))
        assert len(rest) == max(len(whole) - first, 0)
        assert all(same(a, b) for a, b in zip(rest, whole[first:], strict=True))


def test_steps_resumed_anywhere_are_those_of_an_uninterrupted_run(gratings: Path) -> None:
    rows = Rows(gratings, "train", 1, 4)
    each = rows.batches_per_epoch(4)
    whole = list(rows.steps(4, seed=2, epochs=3))
    assert [step.step for step in whole] == list(range(3 * each))
    assert [step.epoch for step in whole] == [n // each for n in range(3 * each)]
    for first in (0, 1, each - 1, each, 2 * each + 1, 3 * each):
        rest = list(rows.steps(4, seed=2, first=first, epochs=3))
        assert [step.step for step in rest] == list(range(first, 3 * each))
        assert all(same(a.batch, b.batch) for a, b in zip(rest, whole[first:], strict=True))


def test_steps_of_too_few_rows_are_refused(gratings: Path) -> None:
    with pytest.raises(FairleadError, match="one step needs more samples") as caught:
        next(Rows(gratings, "train", 0, 4).steps(16, seed=1))
    assert finding(caught).check == "data-too-small"


# --- damage -----------------------------------------------------------------------------------


def torn(folder: Path, form: str = "tfrecord") -> Path:
    """A data set of three files, of which the second is cut short."""
    made(folder, of("gratings", form))
    path = sorted(folder.glob("*train*"))[1]
    path.write_bytes(path.read_bytes()[:-3])
    return path


@pytest.mark.parametrize("form", files.FORMATS)
def test_damaged_file_is_named_or_skipped_and_counted(tmp_path: Path, form: str) -> None:
    path = torn(tmp_path, form)
    with pytest.raises(FairleadError) as caught:
        Rows(tmp_path, "train", 0, 1)
    assert finding(caught).where == str(path) and finding(caught).check == "data-damaged"
    found = read_manifest(tmp_path, "train", skip_damaged=True)
    assert [damage.path for damage in found.damaged] == [path]
    assert found.total == 9 + 5
    assert len(joined(Rows(found, "train", 0, 1).in_order(4))) == 14


def test_all_damaged_files_are_reported_at_once(tmp_path: Path) -> None:
    made(tmp_path, of("hep", "tfrecord"))
    for path in tmp_path.glob("*train*"):
        path.write_bytes(path.read_bytes()[:-3])
    for skip in (False, True):
        with pytest.raises(FairleadError) as caught:
            read_manifest(tmp_path, "train", skip_damaged=skip)
        assert len(caught.value.findings) == 3


@pytest.mark.parametrize("form", ["hdf5", "tfrecord"])
def test_altered_data_are_found_by_reading_or_by_a_full_check(tmp_path: Path, form: str) -> None:
    made(tmp_path, of("gratings", form))
    path = sorted(tmp_path.glob("*train*"))[1]
    pixels = read(Rows(tmp_path, "train", 0, 1).spans[1]).inputs[4]
    content = bytearray(path.read_bytes())
    content[content.index(pixels[3, 3].tobytes())] ^= 1
    path.write_bytes(content)
    rows = Rows(read_manifest(tmp_path, "train", skip_damaged=True), "train", 0, 1)
    with pytest.raises(DamagedFile) as caught:
        list(rows.shuffled(4, 1, 0))
    assert finding(caught).where == str(path)
    if form == "tfrecord":
        at = index(path)[4]
        assert f"record 4 at byte {at}: the checksum of its data" in finding(caught).why
    found = read_manifest(tmp_path, "train", skip_damaged=True, verify=True)
    assert [damage.path for damage in found.damaged] == [path]
    assert len(joined(Rows(found, "train", 0, 1).in_order(4))) == 14


def test_file_whose_first_record_is_altered_is_not_counted_by_its_lengths(tmp_path: Path) -> None:
    made(tmp_path, of("hep", "tfrecord"))
    first = min(tmp_path.glob("*train*"))
    content = bytearray(first.read_bytes())
    content[300] ^= 1
    first.write_bytes(content)
    with pytest.raises(FairleadError) as caught:
        read_manifest(tmp_path, "train")
    assert finding(caught).where == str(first)
    found = read_manifest(tmp_path, "train", skip_damaged=True)
    assert [damage.path for damage in found.damaged] == [first] and found.total == 14


def test_file_without_samples_counts_as_damaged(tmp_path: Path) -> None:
    made(tmp_path, of("hep", "tfrecord"))
    tfrecord(tmp_path / "hep_train_00009.tfrecord", how=Compression.GZIP)
    with h5py.File(tmp_path / "hep_val_00000.h5", "w") as file:
        file["data"], file["label"] = np.zeros((0, 3, 4, 4)), np.zeros(0)
    with pytest.raises(FairleadError) as caught:
        read_manifest(tmp_path, "train")
    assert finding(caught).why == "it has no sample"
    (tmp_path / "hep_val_00000.tfrecord").unlink()
    with pytest.raises(FairleadError) as caught:
        read_manifest(tmp_path, "val", skip_damaged=True)
    assert finding(caught).why == "it has no sample"


class Ranks:
    """The ranks of one process, a thread each: what :class:`fairlead.comm.Comm` gives them."""

    def __init__(self, size: int):
        self.size = size
        self._barrier = threading.Barrier(size, timeout=60)
        self._slots: list[Any] = [None] * size

    def run(self, work: Any) -> list[Any]:
        """What ``work(rank)`` returned or raised, on each."""
        out: list[Any] = [None] * self.size

        def one(rank: int) -> None:
            try:
                out[rank] = work(Rank(self, rank))
            except FairleadError as exc:
                out[rank] = exc

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return out

    def exchange(self, rank: int, value: Any) -> list[Any]:
        self._slots[rank] = value
        self._barrier.wait()
        every = list(self._slots)
        self._barrier.wait()
        return every


@dataclasses.dataclass
class Rank:
    world: Ranks
    rank: int

    @property
    def size(self) -> int:
        return self.world.size

    def gather(self, value: Any, root: int = 0) -> list[Any] | None:
        every = self.world.exchange(self.rank, value)
        return every if self.rank == root else None

    def broadcast(self, arrays: Any, root: int = 0) -> list[Any]:
        every = self.world.exchange(self.rank, [np.array(a) for a in arrays])
        assert {tuple(a.shape for a in each) for each in every} == {tuple(a.shape for a in arrays)}
        return [a.copy() for a in every[root]]


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_ranks_that_share_the_looking_agree(tmp_path: Path, ranks: int) -> None:
    torn(tmp_path)
    alone = read_manifest(tmp_path, "train", skip_damaged=True)
    found = Ranks(ranks).run(
        lambda rank: read_manifest(tmp_path, "train", skip_damaged=True, together=rank)
    )
    assert found == [alone] * ranks
    said = Ranks(ranks).run(lambda rank: read_manifest(tmp_path, "train", together=rank))
    assert len({str(exc.findings) for exc in said}) == 1
    assert said[0].findings[0].check == "data-damaged"
    said = Ranks(ranks).run(lambda rank: read_manifest(tmp_path / "no", "val", together=rank))
    assert {exc.findings[0].check for exc in said} == {"data-missing"}


# --- layouts ----------------------------------------------------------------------------------


@given(st.integers(1, 40), st.sampled_from([1, 3, 4]), st.sampled_from([2, 3]))
def test_side_of_a_square_or_cube_is_found(side: int, channels: int, dimensions: int) -> None:
    count = channels * math.prod([side] * dimensions)
    assert formats.root(count, channels, dimensions) == side
    assert side == 1 or formats.root(count + channels, channels, dimensions) == 0
