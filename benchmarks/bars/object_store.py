"""Data in an S3 store on loopback: staging against rclone and s3cmd, and samples that are staged, mounted and streamed.

The store is Swift with its S3 interface on the same cores, so rates are those of client and store together. fairlead's time
includes what the others leave out: reading all of it back from the disk, and hashing.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tests.support.object_stores import LoopbackStore, installed, swift

from benchmarks.result import PACKAGE, Benchmark, Compared, Result, absolute, alternate, compare
from benchmarks.sides import scratch
from fairlead.ml.data.manifest import read_manifest
from fairlead.ml.data.shards import Rows
from fairlead.objects.model import PART, Object
from fairlead.objects.pack import pack_shards
from fairlead.objects.registry import open_store
from fairlead.objects.survey import survey
from fairlead.transfer.mount import MountItem, Mounts, mounted

NAME = "object-store"
_BATCH = 16
# Without torchvision, whose wheels of PyPI want CUDA, and without other clouds' clients.
_MOSAIC = (
    "mosaicml-streaming==0.13.0", "torch==2.13.0", "transformers==4.57.6", "boto3==1.44.8", "botocore==1.44.8",
    "brotli==1.2.1", "catalogue==2.0.10", "certifi==2026.10.19.post1", "charset-normalizer==3.5.3", "cramjam==2.14.0",
    "filelock==4.3.1", "fsspec==2026.9.0", "hf-xet==1.8.0", "huggingface_hub==0.36.2", "idna==3.20", "Jinja2==3.1.6",
    "jmespath==1.1.0", "MarkupSafe==3.0.4", "mpmath==1.3.0", "networkx==3.6.1", "numpy==2.1.3", "packaging==26.4",
    "pillow==13.0.0", "python-dateutil==2.9.0.post0", "python-snappy==0.7.3", "PyYAML==6.0.4", "regex==2026.11.19",
    "requests==2.34.2", "s3transfer==0.19.3", "safetensors==0.8.0", "six==1.17.0", "sympy==1.14.0", "tokenizers==0.22.2",
    "tqdm==4.70.1", "typing_extensions==4.16.0", "urllib3==2.8.0", "xxhash==4.1.0", "zstd==1.5.7.2",
)  # fmt: skip


@dataclass(frozen=True)
class Samples:
    """So many samples of a model's data set, and options of their generator."""

    model: str
    data: str
    count: int
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Attributes:
        large, small: bytes of 8 files, and number of files of 4 kB.
        samples: data sets that are read.
    """

    large: int = 128 << 20
    small: int = 300
    samples: tuple[Samples, ...] = (
        Samples("HEP-CNN", "hep", 2000),
        Samples("ResNet-50", "gratings", 400, ("--size", "224")),
    )
    rounds: int = 4


def measure(effort: Effort | None = None) -> Result:
    """Seconds to bring files to the node; seconds to the first batch and for one and two epochs."""
    effort = effort or Effort()
    with scratch() as folder, _store(folder) as store:
        rows = _copies(folder, store, effort) + _reading(folder, store, effort)
        versions = {"rclone": _version("rclone"), "s3cmd": _version(_s3cmd())}
        versions["mosaicml-streaming"] = _MOSAIC[0].partition("==")[2]
    return Result(
        NAME,
        "fairlead's staging, verified from the disk; samples after staging",
        "rclone and s3cmd, which do not read back; a mount, tar shards as a stream, MosaicML's streaming",
        rows,
        versions,
    )


@contextmanager
def _store(folder: Path) -> Iterator[LoopbackStore]:
    """The store, whose variables are in this process's environment meanwhile."""
    before = dict(os.environ)
    with swift(folder / "swift") as running:
        os.environ.update(running.variables())
        running.make_bucket("bench")
        try:
            yield running
        finally:
            os.environ.clear()
            os.environ.update(before)


# --- copies --------------------------------------------------------------------------------------


def _copies(folder: Path, store: LoopbackStore, effort: Effort) -> tuple[Compared, ...]:
    random = np.random.default_rng(1)
    store.put("bench", {f"large/{n}": random.bytes(effort.large // 8) for n in range(8)})
    store.put("bench", {f"small/{n:05d}": random.bytes(4096) for n in range(effort.small)})
    rows: list[Compared] = []
    sizes = {
        "large": f"8 files, {effort.large >> 20} MiB in all",
        "small": f"{effort.small} files of 4 kB",
    }
    for name, title in sizes.items():
        sides = {
            side: lambda side=side, name=name: _copied(side, name, folder, store) for side in _SIDES
        }
        seconds = alternate(effort.rounds, sides)
        for peer in ("rclone", "s3cmd"):
            label = f"{title}: staged and verified / {peer}"
            rows.append(compare(label, seconds["fairlead"], seconds[peer], None))
        rows.append(absolute(f"{title}: staged and verified", seconds["fairlead"], None))
    return tuple(rows)


_SIDES = ("fairlead", "rclone", "s3cmd")


def _copied(side: str, name: str, folder: Path, store: LoopbackStore) -> float:
    """Seconds of a whole program that copies a prefix to a new folder."""
    target = folder / "target"
    url = f"s3://bench/{name}"
    words: Mapping[str, list[str]] = {
        "fairlead": [
            sys.executable, "-m", "fairlead.transfer", "in", str(target), "--item", url, name,
        ],
        "rclone": ["rclone", "copy", f"STORE:bench/{name}", str(target), "--config", "/dev/null"],
        "s3cmd": [
            _s3cmd(), "-q", "-c", "/dev/null", "--no-ssl", f"--host={store.endpoint[7:]}",
            f"--host-bucket={store.endpoint[7:]}", f"--access_key={store.key}",
            f"--secret_key={store.secret}", "get", "--recursive", f"{url}/", f"{target}/",
        ],
    }  # fmt: skip
    environ = {**os.environ, **_rclone(store)} if side == "rclone" else dict(os.environ)
    if side == "rclone":
        environ = {k: v for k, v in environ.items() if not k.startswith("AWS_")}
    if side != "fairlead":
        target.mkdir()
    begun = time.perf_counter()
    quiet = subprocess.DEVNULL
    subprocess.run(words[side], env=environ, check=True, stdout=quiet, stderr=quiet)
    seconds = time.perf_counter() - begun
    shutil.rmtree(target)
    return seconds


def _rclone(store: LoopbackStore) -> dict[str, str]:
    settings = {
        "TYPE": "s3", "PROVIDER": "Other", "ENDPOINT": store.endpoint, "REGION": "us-east-1",
        "ACCESS_KEY_ID": store.key, "SECRET_ACCESS_KEY": store.secret,
    }  # fmt: skip
    return {f"RCLONE_CONFIG_STORE_{name}": value for name, value in settings.items()}


def _s3cmd() -> str:
    return str(installed("s3cmd", "s3cmd==2.4.0", "setuptools<81") / "bin/s3cmd")


def _version(program: str) -> str:
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    return said.stdout.split("\n")[0]


# --- reading -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Read:
    """Seconds from nothing to the first batch, to the end of the first epoch, and of the second."""

    first: float
    epoch: float
    second: float


def _reading(folder: Path, store: LoopbackStore, effort: Effort) -> tuple[Compared, ...]:
    rows: list[Compared] = []
    for samples in effort.samples:
        found = _read(folder / samples.data, store, samples, effort.rounds)
        title = f"{samples.model}'s samples"
        for peer in ("mounted", "streamed", "MosaicML"):
            for what, name in (
                ("first", "seconds to the first batch"),
                ("epoch", "first epoch, from nothing"),
                ("second", "second epoch"),
            ):
                ours, theirs = (
                    [getattr(read, what) for read in found[side]] for side in ("staged", peer)
                )
                rows.append(compare(f"{title}, {name}: staged / {peer}", ours, theirs, None))
        for side, reads in found.items():
            rates = [samples.count / read.second for read in reads]
            first = [read.first for read in reads]
            rows.append(absolute(f"{title} {side}: seconds to the first batch", first, None))
            rows.append(absolute(f"{title} {side}: second epoch", rates, None, unit="samples/s"))
    return tuple(rows)


def _read(folder: Path, store: LoopbackStore, samples: Samples, rounds: int) -> dict[str, list[_Read]]:  # fmt: skip
    """Each way to read, in turn."""
    events, name = folder / "events", samples.data
    subprocess.run(
        [
            sys.executable, "-m", "fairlead.ml.data.generate", "--set", samples.data, "--train",
            str(samples.count), "--val", "16", "--per-shard", str(samples.count // 8), "--out", str(events),
            *samples.options,
        ],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    _put(store, events, f"{name}/events")
    _as_samples(events, folder / "samples")
    shard = sum(p.stat().st_size for p in events.glob("*_train_*")) // 8
    pack_shards(folder / "samples", folder / "shards", shard)
    _put(store, folder / "shards", f"{name}/shards")
    python = installed("mosaicml-streaming", *_MOSAIC, "--no-deps") / "bin/python"
    mosaic = [python, PACKAGE / "programs" / "mosaic_streaming.py"]
    made = folder / "mosaic"
    subprocess.run([*mosaic, "write", folder / "samples", made, str(shard)], check=True)
    _put(store, made, f"{name}/mosaic")
    url = f"s3://bench/{name}"
    sides = {
        "staged": lambda: _staged(f"{url}/events", folder),
        "mounted": lambda: _mounted(f"{url}/events", folder),
        "streamed": lambda: _streamed(f"{url}/shards", samples.count),
        "MosaicML": lambda: _mosaic(mosaic, f"{url}/mosaic", folder / "cache"),
    }
    return alternate(rounds, sides)


def _put(store: LoopbackStore, folder: Path, prefix: str) -> None:
    store.put("bench", {f"{prefix}/{p.name}": p.read_bytes() for p in folder.iterdir()})


def _mosaic(words: list[Path], url: str, cache: Path) -> _Read:
    """MosaicML's streaming keeps the shards that it has fetched."""
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environ["S3_ENDPOINT_URL"] = os.environ["AWS_ENDPOINT_URL"]
    done = subprocess.run(
        [*words, "read", url, cache, str(_BATCH)], cwd=cache.parent,
        env=environ, check=True, capture_output=True, text=True,
    )  # fmt: skip
    shutil.rmtree(cache)
    return _Read(**json.loads(done.stdout.splitlines()[-1]))


def _as_samples(events: Path, out: Path) -> None:
    """Each event as two files, as WebDataset has them."""
    rows = Rows(read_manifest(events, "train"), "train", 0, 1)
    out.mkdir(parents=True)
    number = 0
    for step in rows.steps(batch=_BATCH, seed=1, epochs=1):
        for image, label in zip(step.batch.inputs, step.batch.targets, strict=True):
            np.save(out / f"{number:06d}.x.npy", image)
            (out / f"{number:06d}.y").write_text(str(int(np.asarray(label).reshape(-1)[0])))
            number += 1


def _epochs(begun: float, batches: Iterator[object], steps: int) -> _Read:
    """Reads two epochs of so many batches."""
    next(batches)
    first = time.perf_counter()
    for _ in range(steps - 1):
        next(batches)
    epoch = time.perf_counter()
    for _ in range(steps):
        next(batches)
    return _Read(first - begun, epoch - begun, time.perf_counter() - epoch)


def _files(folder: Path, begun: float) -> _Read:
    rows = Rows(read_manifest(folder, "train"), "train", 0, 1)
    return _epochs(begun, iter(rows.steps(batch=_BATCH, seed=1)), rows.total // _BATCH)


def _staged(url: str, folder: Path) -> _Read:
    target = folder / "staged"
    words = [sys.executable, "-m", "fairlead.transfer", "in", str(target), "--item"]
    begun = time.perf_counter()
    subprocess.run([*words, url, "events"], check=True, stderr=subprocess.DEVNULL)
    read = _files(target / "data" / "events", begun)
    shutil.rmtree(target)
    return read


def _mounted(url: str, folder: Path) -> _Read:
    mounts = Mounts((MountItem(url, "/data"),), str(folder))
    begun = time.perf_counter()
    with mounted(mounts):
        return _files(Path(mounts.place(0)), begun)


def _streamed(url: str, count: int) -> _Read:
    begun = time.perf_counter()
    store = open_store(url)
    shards = [each for each in survey(store).objects if each.name.startswith("data-")]

    def samples() -> Iterator[tuple[np.ndarray, int]]:
        while True:
            for shard in shards:
                with tarfile.open(
                    fileobj=io.BufferedReader(_Stream(store, shard), 1 << 20), mode="r|"
                ) as archive:
                    image = np.zeros(0)
                    for member in archive:
                        content = archive.extractfile(member)
                        assert content
                        if member.name.endswith(".npy"):
                            image = np.load(io.BytesIO(content.read()))
                        else:
                            yield image, int(content.read())

    def batches() -> Iterator[np.ndarray]:
        source = samples()
        while True:
            yield np.stack([next(source)[0] for _ in range(_BATCH)])

    return _epochs(begun, iter(batches()), count // _BATCH)


class _Stream(io.RawIOBase):
    """An object, read in pieces one after the other."""

    def __init__(self, store: object, each: Object):
        self._store, self._each, self._at, self._left = store, each, 0, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if not self._left and self._at < self._each.size:
            end = min(self._at + PART, self._each.size)
            with self._store.read(self._each, self._at, end) as body:  # type: ignore[attr-defined]
                self._left = b"".join(body.chunks)
            self._at = end
        count = min(len(buffer), len(self._left))
        buffer[:count], self._left = self._left[:count], self._left[count:]
        return count


BENCHMARKS = (Benchmark(NAME, 190, measure),)
