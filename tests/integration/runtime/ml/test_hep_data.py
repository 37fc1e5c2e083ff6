"""The synthetic HEP events, their files, and the models that must fail and succeed on them."""

import dataclasses

import numpy as np
import pytest

from fairlead.base.errors import FairleadError
from fairlead.ml import registry
from fairlead.ml.data import synthetic_hep
from fairlead.ml.data.baseline import auc, measure, ridge, roc
from fairlead.ml.data.generate import DataSet, generate
from fairlead.ml.data.manifest import find_shards
from fairlead.ml.data.shards import Rows, read
from fairlead.ml.train.events import EventLog, Tail

SMALL = DataSet(train=50, val=30, per_shard=20, seed=3, size=16)


@pytest.fixture(scope="module")
def sample():
    return synthetic_hep.shard(seed=11, split="train", index=0, events=1500)


def generated(folder, data=SMALL, processes=1):
    generate(data, folder, processes, EventLog(folder / "events.jsonl"))
    return {path.name: path.read_bytes() for path in folder.glob("*.h5")}


def test_shard_same_arguments_gives_same_bits():
    first, second = (synthetic_hep.shard(5, "val", 2, 20, 16) for _ in range(2))
    np.testing.assert_array_equal(first.inputs, second.inputs)
    np.testing.assert_array_equal(first.targets, second.targets)


@pytest.mark.parametrize("other", [(6, "val", 2), (5, "train", 2), (5, "val", 3)])
def test_shard_other_seed_split_or_index_gives_other_events(other):
    mine = synthetic_hep.shard(5, "val", 2, 20, 16).inputs
    seed, split, index = other
    theirs = synthetic_hep.shard(seed, split, index, 20, 16).inputs
    assert not (mine[:, None] == theirs[None]).all(axis=(2, 3, 4)).any()


def test_images_have_the_documented_form(sample):
    assert sample.inputs.shape == (1500, 3, 64, 64)
    assert sample.inputs.dtype == np.float32
    assert set(np.unique(sample.targets)) == {0, 1}
    assert 0.45 < sample.targets.mean() < 0.55
    assert (sample.inputs >= 0).all()
    # every channel is in units of its calibrated maximum
    assert (sample.inputs.max(axis=(0, 2, 3)) < 3).all()
    assert (sample.inputs.max(axis=(0, 2, 3)) > 0.3).all()


def test_images_wrap_around_in_x_only(sample):
    energy = sample.inputs[:, 0].mean(axis=0)
    columns, rows = energy.mean(axis=0), energy.mean(axis=1)
    assert columns[[0, -1]].mean() > 0.8 * columns.mean()  # the seam looks like any other column
    assert rows[[0, -1]].mean() < 0.5 * rows.max()


def test_total_energy_does_not_distinguish_classes(sample):
    assert auc(sample.targets, sample.inputs[:, 0].sum(axis=(1, 2))) == pytest.approx(0.5, abs=0.05)


def test_linear_model_fails_and_peak_count_succeeds(sample):
    images, labels = sample.inputs, sample.targets
    linear = auc(labels[1000:], ridge(images[:1000], labels[:1000, None], images[1000:])[:, 0])
    assert linear < 0.65
    assert auc(labels, peaks(images[:, 0])) > 0.92


def peaks(energy):
    """Local maxima of 7x7 neighbourhoods, periodic in x, above 6 % of the image's maximum."""
    highest = np.full_like(energy, -1.0)
    padded = np.pad(energy, ((0, 0), (3, 3), (0, 0)), constant_values=-1.0)
    for dy in range(7):
        for dx in range(-3, 4):
            window = np.roll(padded[:, dy : dy + energy.shape[1]], dx, axis=2)
            np.maximum(highest, window, out=highest)
    threshold = 0.06 * energy.max(axis=(1, 2), keepdims=True)
    return ((energy == highest) & (energy > threshold)).sum(axis=(1, 2))


def test_auc_equals_counting_pairs():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 60).astype(np.int32)
    scores = rng.integers(0, 9, 60) / 4 + labels  # with ties
    signal, background = scores[labels == 1], scores[labels == 0]
    pairs = (signal[:, None] > background).sum() + 0.5 * (signal[:, None] == background).sum()
    assert auc(labels, scores) == pytest.approx(pairs / (len(signal) * len(background)), rel=1e-12)


@pytest.mark.parametrize("scores", [[1.0, np.nan], [0.0, 1.0]])
def test_auc_one_class_or_nan_is_refused(scores):
    labels = np.array([1, 1 if scores[0] == 0.0 else 0], np.int32)
    with pytest.raises(FairleadError, match="AUC"):
        auc(labels, np.array(scores))


def test_roc_integrates_to_the_auc():
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, 4000).astype(np.int32)
    scores = rng.normal(size=4000) + labels
    x, y = np.array(roc(labels, scores)).T
    assert np.trapezoid(y, x) == pytest.approx(auc(labels, scores), abs=2e-3)
    assert (np.diff(y) >= 0).all() and y[0] == 0 and y[-1] == 1


def test_ridge_dual_form_equals_the_primal():
    rng = np.random.default_rng(2)
    train, test = rng.normal(size=(40, 7)), rng.normal(size=(9, 7))
    train[:, 3] = test[:, 3] = 5.0  # a pixel that never varies
    labels = rng.integers(0, 2, 40).astype(np.int32)
    use = [0, 1, 2, 4, 5, 6]
    mean, deviation = train[:, use].mean(0), train[:, use].std(0)
    x, z = (train[:, use] - mean) / deviation, (test[:, use] - mean) / deviation
    weights = np.linalg.solve(x.T @ x + 3.0 * np.eye(6), x.T @ (labels - labels.mean()))
    said = ridge(train, labels[:, None], test, 3.0)[:, 0]
    np.testing.assert_allclose(said, z @ weights + labels.mean(), atol=1e-5)


def test_generate_any_number_of_processes_gives_same_events(tmp_path):
    for processes in (1, 3):
        generated(tmp_path / str(processes), processes=processes)
    for split, count in (("train", 50), ("val", 30)):
        one, three = (
            [batch.inputs for batch in Rows(tmp_path / n, split, 0, 1).in_order(20)]
            for n in ("1", "3")
        )
        np.testing.assert_array_equal(np.concatenate(one), np.concatenate(three))
        assert sum(map(len, one)) == count


def test_generate_again_keeps_whole_files_and_repairs_the_rest(tmp_path):
    before = generated(tmp_path)
    kept = tmp_path / "hep_train_00000.h5"
    stamp = kept.stat().st_mtime_ns
    torn = tmp_path / "hep_train_00001.h5"
    torn.write_bytes(before[torn.name][:-100])
    (tmp_path / "hep_val_00001.h5").unlink()
    (tmp_path / ".hep_val_00001.h5.x.partial").write_bytes(b"half")
    generated(tmp_path)
    assert kept.stat().st_mtime_ns == stamp
    assert len(read(Rows(tmp_path, "train", 0, 1).spans[1]).targets) == 20
    assert sorted(p.name for p in tmp_path.glob("*hep*")) == sorted(before)


def test_generate_smaller_set_drops_the_larger_one(tmp_path):
    generated(tmp_path)
    generated(tmp_path, dataclasses.replace(SMALL, train=20))
    assert len(find_shards(tmp_path, "train")) == 1


def test_generate_reports_start_shards_and_end(tmp_path):
    generated(tmp_path)
    output = list(Tail(tmp_path / "events.jsonl").read())
    assert [e["event"] for e in output] == ["start", *["shard"] * 5, "done"]
    assert output[0] == {"event": "start", "events": 80, "kept": 0}
    assert output[-2]["events"] == 80


def test_rows_shares_are_disjoint_whole_and_even(tmp_path):
    generated(tmp_path)
    whole = np.concatenate([b.inputs for b in Rows(tmp_path, "train", 0, 1).in_order(7)])
    for ranks in (2, 3, 7):
        shares = [Rows(tmp_path, "train", rank, ranks) for rank in range(ranks)]
        joined = np.concatenate([b.inputs for share in shares for b in share.in_order(7)])
        np.testing.assert_array_equal(joined, whole)
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        assert len({share.batches_per_epoch(4) for share in shares}) == 1


def test_rows_more_ranks_than_files_leaves_none_without_events(tmp_path):
    generated(tmp_path)
    assert all(len(Rows(tmp_path, "val", rank, 9)) >= 3 for rank in range(9))


def test_shuffled_epoch_has_full_batches_of_distinct_rows(tmp_path):
    generated(tmp_path)
    rows = Rows(tmp_path, "train", 1, 2)
    batches = list(rows.shuffled(4, seed=1, epoch=0))
    assert [len(b.targets) for b in batches] == [4] * 6  # 25 rows
    flat = np.concatenate([b.inputs for b in batches]).reshape(24, -1)
    assert len(np.unique(flat, axis=0)) == 24


def test_shuffled_same_seed_repeats_and_next_epoch_differs(tmp_path):
    generated(tmp_path)
    rows = Rows(tmp_path, "train", 0, 1)

    def epoch(seed, number):
        return np.concatenate([b.inputs for b in rows.shuffled(8, seed, number)])

    np.testing.assert_array_equal(epoch(1, 0), epoch(1, 0))
    assert not np.array_equal(epoch(1, 0), epoch(1, 1))
    assert not np.array_equal(epoch(1, 0), epoch(2, 0))


def test_read_truncated_file_is_named_with_remedy(tmp_path):
    content = generated(tmp_path)
    torn = tmp_path / "hep_val_00000.h5"
    torn.write_bytes(content[torn.name][:-1000])
    with pytest.raises(FairleadError) as caught:
        Rows(tmp_path, "val", 0, 1)
    finding = caught.value.findings[0]
    assert finding.where == str(torn)
    assert finding.remedy.startswith(f"rm {torn};")


def test_read_altered_byte_is_found_by_checksum(tmp_path):
    content = bytearray(generated(tmp_path)["hep_val_00000.h5"])
    altered = tmp_path / "hep_val_00000.h5"
    data = next(Rows(tmp_path, "val", 0, 1).in_order(20)).inputs
    place = content.index(data[0, 0, 5].tobytes())
    content[place] ^= 0x10
    altered.write_bytes(content)
    with pytest.raises(FairleadError, match="not a whole HEP-CNN file"):
        read(Rows(tmp_path, "val", 0, 1).spans[0])


def test_find_shards_empty_folder_is_refused(tmp_path):
    with pytest.raises(FairleadError, match="no train files"):
        find_shards(tmp_path, "train")


def test_baseline_measures_the_files(tmp_path):
    generated(tmp_path, DataSet(train=60, val=40, per_shard=30, size=16))
    result = measure(tmp_path, 50, 40, registry.find("hepcnn"))
    assert (result["train"], result["val"]) == (50, 40)
    assert 0 <= result["scores"]["auc"] <= 1
