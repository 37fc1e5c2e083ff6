"""Samples by MosaicML's streaming: ``write SAMPLES OUT BYTES`` makes its shards, ``read URL CACHE BATCH`` reads two epochs.

Its imports do not count. torchvision, which its image data sets want, is not needed for arrays.
"""

import importlib.machinery
import json
import sys
import time
import types
from pathlib import Path

import numpy as np
import torch


class Absent(types.ModuleType):
    """A module whose names are there for those who only derive from them."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


for part in ("", ".datasets", ".datasets.vision", ".transforms", ".transforms.functional"):
    module = Absent(f"torchvision{part}")
    module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
    sys.modules[module.__name__] = module

from streaming import MDSWriter, StreamingDataset


def write(samples: str, out: str, shard_bytes: str) -> None:
    names = sorted(Path(samples).glob("*.npy"))
    first = np.load(names[0])
    shape = ",".join(map(str, first.shape))
    columns = {"x": f"ndarray:{first.dtype}:{shape}", "y": "int"}
    with MDSWriter(out=out, columns=columns, size_limit=int(shard_bytes)) as writer:
        for name in names:
            label = int(name.with_name(name.name.replace(".x.npy", ".y")).read_text())
            writer.write({"x": np.load(name), "y": label})


def read(url: str, cache: str, batch: str) -> None:
    begun, times = time.perf_counter(), []
    data = StreamingDataset(
        remote=url, local=cache, shuffle=True, batch_size=int(batch), num_canonical_nodes=1
    )
    for _ in range(2):
        rows = []
        for sample in data:
            rows.append(sample["x"])
            if len(rows) == int(batch):
                torch.from_numpy(np.stack(rows))
                times += [time.perf_counter() - begun] if not times else []
                rows = []
        times.append(time.perf_counter() - begun)
    first, epoch, second = times
    print(json.dumps({"first": first, "epoch": epoch, "second": second - epoch}))


{"write": write, "read": read}[sys.argv[1]](*sys.argv[2:])
