"""What the old libraries have and fairlead has not: an error that names what there is instead."""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.base.errors import FairleadError, fail

_START = "`fairlead run` and `fairlead script` start the ranks under any scheduler"

# By top-level module, then by name: what to use instead.
ABSENT: Mapping[str, Mapping[str, str]] = {
    "horovod": {
        "elastic": "checkpoints, and a job that is started again with as many ranks as there are",
        "run": _START,
        "runner": _START,
        "spark": f"{_START}; the image `analytics` has Spark",
        "ray": _START,
        "mxnet": "TensorFlow, Keras or torch",
        "SyncBatchNormalization": "`fairlead.comm.keras.Broadcast`, which averages the statistics",
        "SyncBatchNorm": "`fairlead.comm.torch.average_buffers`",
        "PartialDistributedGradientTape": "DistributedGradientTape",
        "PartialDistributedOptimizer": "DistributedOptimizer",
        "TensorFlowKerasState": "checkpoints",
        "TorchState": "checkpoints",
        "start_timeline": "`fairlead.comm.init().timings`",
        "stop_timeline": "`fairlead.comm.init().timings`",
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
