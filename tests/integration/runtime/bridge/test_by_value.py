"""What executors and Dask's workers run needs no fairlead there."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import cloudpickle

from fairlead.bridge import arrow, streams, wire
from fairlead.bridge.client import dask, spark

LOAD = """
import pickle, sys
class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] == 'fairlead':
            raise ImportError(f'{name} was asked for')
sys.meta_path.insert(0, Gone())
made = pickle.load(open(sys.argv[1], 'rb'))
try:
    print(made())
except Exception as exc:
    print(type(exc).__name__, exc.check, exc.fields['who'])
"""


def test_senders_and_fetchers_travel_without_fairlead(tmp_path: Path, monkeypatch) -> None:
    # Spark's own copy of cloudpickle is the same library.
    monkeypatch.setitem(sys.modules, "pyspark", SimpleNamespace(cloudpickle=cloudpickle))
    nowhere = (wire.Endpoint(3, "n1", ("127.0.0.1", 1)),)
    form, secret = arrow.Form(2, "float64"), wire.Secret("00" * 32)
    sending = streams.Sending("m1", form, nowhere, secret)
    fetching = streams.Fetching("m1", form, nowhere, (5,), secret)
    modules = (wire, arrow, streams, dask, spark, sys.modules[__name__])
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        made = {
            "dask-send": partial(dask._send_chunk, [[1.0, 2.0]], 0, 1, sending, None),
            "dask-fetch": partial(dask._fetch_chunk, fetching, 0),
            "spark-fetch": partial(_first, spark._fetcher(fetching)),
            "spark-send": partial(_loaded, spark._sender(sending, None, 1)),
        }
        pickled = {name: cloudpickle.dumps(call) for name, call in made.items()}
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)
    for name, text in pickled.items():
        (tmp_path / name).write_bytes(text)
        done = subprocess.run(
            [sys.executable, "-c", LOAD, tmp_path / name],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stdout == "WireError bridge-unreachable rank 3 on n1\n", (
            name,
            done.stdout,
            done.stderr,
        )


def _first(run):
    import pyarrow as pa

    return next(run([pa.RecordBatch.from_pydict({"id": [0]})]))


def _loaded(run):
    """It needs a task's context; that all it refers to is there is what counts."""
    import pickle

    held = dict(zip(run.__code__.co_freevars, run.__closure__, strict=True))
    found = pickle.loads(held["code"].cell_contents).__globals__
    assert callable(found["_chunks"])
    raise found["WireError"]("bridge-unreachable", who="rank 3 on n1")
