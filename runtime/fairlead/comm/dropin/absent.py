"""What the old libraries have and fairlead has not: an error that names what there is instead."""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.base.errors import FairleadError, fail

_START = "`fairlead run` and `fairlead script` start the ranks under any scheduler"

# By top-level module, then by name: what to use instead.
ABSENT: Mapping[str, Mapping[str, str]] = {
    "horovod": {
        "run": _START,
        "runner": _START,
        "spark": f"{_START}; the image `analytics` has Spark",
        "ray": _START,
        "mxnet": "TensorFlow, Keras or torch",
        "BestModelCheckpoint": "`keras.callbacks.ModelCheckpoint(path, save_best_only=True)` on rank 0",
        "broadcast_global_variables": "`callbacks.BroadcastGlobalVariablesCallback(0)`",
        "PartialDistributedOptimizer": "Keras 2, in the image `tensorflow:keras2`",
    },
}  # fmt: skip


def refuse(top: str, name: str) -> None:
    """Raises if ``name`` (its first part counts, and its last) is known to be absent."""
    parts = [part for part in name.split(".") if part not in ("tensorflow", "keras", "torch")]
    for part in parts:
        if part in ABSENT.get(top, {}):
            raise not_offered(f"{top}.{name}", ABSENT[top][part])


def not_offered(what: str, instead: str) -> FairleadError:
    return fail("comm-dropin-absent", what=what, instead=instead)
