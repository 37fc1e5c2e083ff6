"""Reading ahead in a thread, measuring it, and the photographs of ImageNet."""

from __future__ import annotations

import gc
import io
import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fairlead.base.errors import FairleadError
from fairlead.ml.data import images, speed
from fairlead.ml.data.example import encode
from fairlead.ml.data.formats import BadSample
from fairlead.ml.data.generate import DataSet
from fairlead.ml.data.prefetch import prefetch
from fairlead.ml.data.samples import DamagedFile, Samples
from fairlead.ml.data.shards import Rows
from fairlead.ml.data.tfrecord import Writer

# --- reading ahead ----------------------------------------------------------------------------


def threads() -> int:
    return sum(thread.name == "fairlead-prefetch" for thread in threading.enumerate())


class Source:
    """Counts what was taken from it, and tells when it was closed."""

    def __init__(self, items: int, fails: bool = False):
        self.taken, self.closed = 0, threading.Event()
        self._items, self._fails = items, fails

    def __iter__(self) -> Iterator[int]:
        try:
            for number in range(self._items):
                self.taken += 1
                yield number
            if self._fails:
                raise KeyError("in the thread")
        finally:
            self.closed.set()


@pytest.mark.parametrize("depth", [1, 3, 50])
def test_prefetch_gives_all_items_in_order(depth: int) -> None:
    source = Source(20)
    assert list(prefetch(source, depth)) == list(range(20))
    assert source.closed.is_set() and threads() == 0


def test_prefetch_carries_what_was_raised_behind_what_came_before() -> None:
    ahead = prefetch(Source(3, fails=True), depth=10)
    assert [next(ahead) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError, match="in the thread"):
        next(ahead)
    assert threads() == 0


def test_prefetch_makes_no_more_than_its_depth_ahead() -> None:
    source = Source(1000)
    ahead = prefetch(source, depth=2)
    next(ahead)
    deadline = time.monotonic() + 5
    while source.taken < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert source.taken == 4  # one used, two ready, one that waits for room
    ahead.close()  # type: ignore[attr-defined]


def test_prefetch_dropped_in_the_middle_ends_its_thread_and_closes_the_source() -> None:
    source = Source(1000)
    ahead = prefetch(source, depth=2)
    next(ahead)
    assert threads() == 1
    del ahead
    gc.collect()
    assert source.closed.wait(5) and threads() == 0


def test_prefetch_never_begun_starts_nothing() -> None:
    source = Source(5)
    prefetch(source)
    gc.collect()
    assert (source.taken, threads()) == (0, 0)


# --- measuring --------------------------------------------------------------------------------


def test_measure_takes_the_median_of_windows_behind_the_warm_up() -> None:
    def batches() -> Iterator[Samples]:
        batch = Samples(np.zeros((10, 4), np.float32), np.zeros(10, np.int32))
        for number in range(10**6):
            time.sleep(0.2 if number == 0 else 0.002)  # the first is slow, as it is
            yield batch

    found = speed.measure(batches(), windows=3, window_s=0.05, warmup_s=0.1)
    assert len(found.windows) == 3
    assert found.samples_per_s == sorted(found.windows)[1] > 200
    assert found.input_bytes_per_s == 16 * found.samples_per_s
    assert found.samples >= 30
    with pytest.raises(ValueError, match="ended before"):
        speed.measure([])


def test_speed_prints_json_and_names_damaged_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for job in DataSet(20, 5, 10, size=8, kind="cosmo", format="tfrecord").jobs(tmp_path):
        job.run()
    quick = ["--batch", "4", "--windows", "2", "--window-s", "0.02", "--warmup-s", "0.01"]
    monkeypatch.setattr(sys, "argv", ["speed", "--data", str(tmp_path), "--json", *quick])
    speed.main()
    output = json.loads(capsys.readouterr().out)
    assert (output["data_set"], output["rows"], output["files"]) == ("cosmo", 20, 2)
    assert output["input_shape"] == [8, 8, 8, 1] and output["samples_per_s"] > 0
    path = tmp_path / "cosmo_train_00001.tfrecord"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(SystemExit, match="1"):
        speed.main()
    assert "error[data-damaged]" in capsys.readouterr().out
    sys.argv += ["--skip-damaged", "--ahead", "0"]
    sys.argv.remove("--json")
    speed.main()
    assert f"skipped {path}" in capsys.readouterr().out


# --- photographs ------------------------------------------------------------------------------


def jpeg(pixels: Any, kind: str = "JPEG") -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind, quality=95)
    return out.getvalue()


def photograph(number: int, high: int = 90, wide: int = 120) -> Any:
    """A smooth one, so that JPEG changes little."""
    y, x = np.mgrid[:high, :wide] / 100
    waves = [np.sin(3 * x + number), np.cos(2 * y - number), np.sin(x * y + number)]
    return (127 + 100 * np.stack(waves, -1)).astype(np.uint8)


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("imagenet")
    for name, first, count in (
        ("train-00000-of-00002", 0, 7),
        ("train-00001-of-00002", 7, 5),
        ("validation-00000-of-00001", 0, 3),
    ):
        with (folder / name).open("wb") as stream, Writer(stream) as out:
            for number in range(first, first + count):
                box = np.array([0.25, 0.5], np.float32)
                message = {
                    "image/encoded": jpeg(photograph(number)),
                    "image/class/label": np.array([number + 1]),
                    "image/format": b"JPEG",
                    "image/object/bbox/xmin": box,
                    "image/object/bbox/ymin": box,
                    "image/object/bbox/xmax": box + 0.4,
                    "image/object/bbox/ymax": box + 0.4,
                }
                out.write(encode(message))
    return folder


def test_photographs_of_validation_are_the_middle_less_the_mean(imagenet: Path) -> None:
    rows = Rows(imagenet, "val", 0, 1)
    (batch,) = rows.in_order(8)
    assert batch.inputs.shape == (3, 224, 224, 3) and batch.inputs.dtype == np.float32
    np.testing.assert_array_equal(batch.targets, [1, 2, 3])
    # 90 x 120 becomes 256 x 341; its middle pixel is the source's.
    for number, pixels in enumerate(batch.inputs + np.array(images.MEANS, np.float32)):
        np.testing.assert_allclose(pixels[112, 112], photograph(number)[45, 60], atol=8)


def test_photographs_of_training_depend_on_seed_epoch_and_row_alone(imagenet: Path) -> None:
    def of(ranks: int, batch: int, seed: int = 3, epoch: int = 1, cores: int = 1) -> dict[int, Any]:
        found = {}
        for rank in range(ranks):
            rows = Rows(imagenet, "train", rank, ranks, threads=cores)
            for samples in rows.shuffled(batch, seed, epoch):
                found |= dict(zip(samples.targets.tolist(), samples.inputs, strict=True))
        return found

    whole = of(1, 3)
    assert sorted(whole) == list(range(1, 13))
    for other in (of(4, 1), of(2, 2), of(1, 3, cores=3)):
        assert other.keys() == whole.keys()
        assert all(np.array_equal(other[label], whole[label]) for label in whole)
    for other in (of(1, 3, seed=4), of(1, 3, epoch=2)):
        assert not any(np.array_equal(other[label], whole[label]) for label in whole)


def test_photograph_that_cannot_be_decoded_is_named(imagenet: Path, tmp_path: Path) -> None:
    path = tmp_path / "train-00000-of-00001"
    with path.open("wb") as stream, Writer(stream) as out:
        for picture in (jpeg(photograph(1)), b"\xff\xd8 no picture", jpeg(photograph(2))[:200]):
            out.write(encode({"image/encoded": picture, "image/class/label": np.array([1])}))
    rows = Rows(tmp_path, "train", 0, 1)
    for number in (1, 2):
        span = type(rows.spans[0])(path, number, number + 1, number)
        rows.spans = (span,)
        with pytest.raises(DamagedFile) as caught:
            list(rows.in_order(1))
        assert caught.value.why.startswith(f"record {number}: `image/encoded`")


def test_photographs_of_other_kinds_become_three_colours() -> None:
    grey = photograph(1)[..., 0]
    found = images.decoded(jpeg(grey))
    assert found.shape == (90, 120, 3) and (found[..., 0] == found[..., 2]).all()
    np.testing.assert_array_equal(images.decoded(jpeg(photograph(1), "PNG")), photograph(1))
    cmyk = io.BytesIO()
    Image.fromarray(photograph(1)).convert("CMYK").save(cmyk, "JPEG")
    assert images.decoded(cmyk.getvalue()).shape == (90, 120, 3)


def test_error_of_a_decoder_without_a_text_has_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError

    monkeypatch.setattr(Image, "open", refuse)
    with pytest.raises(BadSample, match="`image/encoded`: OSError"):
        images.decoded(b"")


def test_no_decoder_is_an_error_that_names_two(monkeypatch: pytest.MonkeyPatch) -> None:
    import fairlead.base.messages  # noqa: F401, of an error, which cannot be imported below

    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "meta_path", [])
    monkeypatch.delitem(sys.modules, "PIL")
    images.decoder.cache_clear()
    with pytest.raises(FairleadError) as caught:
        images.decoded(b"")
    finding = caught.value.findings[0]
    assert finding.check == "data-decoder"
    assert "TensorFlow" in finding.why and "pillow" in finding.remedy
    images.decoder.cache_clear()


@given(st.integers(8, 400), st.integers(8, 400), st.integers(0, 99))
def test_random_parts_lie_in_the_picture_and_have_the_published_form(
    high: int, wide: int, seed: int
) -> None:
    box = np.array([[0.1, 0.1, 0.6, 0.7]], np.float32)
    top, left, height, width = images.crop(high, wide, box, np.random.default_rng(seed))
    assert 0 <= top <= high - height and 0 <= left <= wide - width
    assert height > 0 and width > 0
    if (height, width) != (high, wide):
        assert 0.05 <= height * width / (high * wide) <= 1
        assert abs(width / height - 1.04) <= 0.29 + 1 / height
        inside = [min(e, b) - max(s, a) for s, e, a, b in (
            (top, top + height, 0.1 * high, 0.6 * high), (left, left + width, 0.1 * wide, 0.7 * wide))]  # fmt: skip
        assert inside[0] * inside[1] >= 0.1 * 0.5 * 0.6 * high * wide * 0.999


def test_random_parts_are_of_many_sizes_and_places() -> None:
    rng = np.random.default_rng(0)
    found = np.array([images.crop(200, 300, np.empty((0, 4)), rng) for _ in range(400)])
    area = found[:, 2] * found[:, 3] / 60_000
    assert area.min() < 0.15 and area.max() > 0.5
    assert len(np.unique(found[:, 0])) > 60 and len(np.unique(found[:, 1])) > 80


def test_resizing_is_bilinear_without_smoothing() -> None:
    pixels = photograph(1)
    np.testing.assert_array_equal(images.resized(pixels, 90, 120), pixels)
    twice = images.resized(pixels, 180, 240)
    np.testing.assert_array_equal(twice[::2, ::2], pixels)
    between = (pixels[:-1, :-1].astype(float) + pixels[1:, 1:] + pixels[1:, :-1] + pixels[:-1, 1:]) / 4  # fmt: skip
    np.testing.assert_allclose(twice[1:-1:2, 1:-1:2], between, atol=1e-4)
    np.testing.assert_array_equal(
        images.resized(pixels, 45, 60), pixels[::2, ::2].astype(np.float32)
    )
    part = images.resized(pixels, 180, 240, (11, 20, 33, 40))
    np.testing.assert_array_equal(part, twice[11:44, 20:60])
