"""What the old libraries have and fairlead has not: an error that names what there is instead."""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.base.errors import FairleadError, fail

_SUM = "op=Average or op=Sum; for anything else, `allgather_object` and NumPy"
_SUBSET = "`fairlead.comm.init().team()` has all ranks; a subset of them is mpi4py's `Comm.Split`"
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
        "Adasum": _SUM,
        "Min": _SUM,
        "Max": _SUM,
        "Product": _SUM,
        "ProcessSet": _SUBSET,
        "add_process_set": _SUBSET,
        "remove_process_set": _SUBSET,
        "global_process_set": _SUBSET,
        "join": "as many batches on every rank: cut the data to a multiple of ranks times batch",
        "alltoall": "mpi4py's `Alltoallv`",
        "reducescatter": "`allreduce`, of which each rank then takes its part",
        "grouped_reducescatter": "`grouped_allreduce`, of which each rank then takes its part",
        "grouped_allgather": "`allgather_object` of a list",
        "allreduce_async": "`allreduce`, or `fairlead.comm.start`",
        "allreduce_async_": "`allreduce_`, or `fairlead.comm.start`",
        "allgather_async": "`allgather`",
        "broadcast_async": "`broadcast`",
        "broadcast_async_": "`broadcast_`",
        "synchronize": "`allreduce`, which returns when it is done",
        "poll": "`allreduce`, which returns when it is done",
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
