"""Every rank of a training run: ``python3 -m fairlead.train.worker --config config.json``.

Synchronous data parallelism in the open: each rank computes gradients of its own batch,
:func:`fairlead.comm.aggregate` makes them the mean over ranks through one fused buffer, and each
rank applies the same update to the same weights, which are hashed and compared at the end.

Runs inside an image, or anywhere with TensorFlow, Keras 3, h5py and mpi4py. Nothing hangs when one
rank fails: an error that all ranks see (a loss that is no number, weights that differ) ends each of
them; any other exception ends all ranks by ``MPI_Abort``.

:mod:`fairlead.train.host` is the other side; :mod:`fairlead.train.model` the values between them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import socket
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fairlead import comm
from fairlead.comm import Comm
from fairlead.data.baseline import auc, roc
from fairlead.data.samples import Samples
from fairlead.data.shards import Rows
from fairlead.findings import FairleadError, fail
from fairlead.models import hepcnn
from fairlead.paths import atomic_write
from fairlead.serial import from_json, to_json
from fairlead.train.events import EventLog
from fairlead.train.model import (
    Evaluation,
    LossPoint,
    RankWeights,
    Speed,
    WorkerConfig,
    WorkerResult,
)

_EVALUATION_BATCH = 100


def main() -> None:
    """The command line of one rank."""
    parser = argparse.ArgumentParser(prog="python3 -m fairlead.train.worker", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="JSON of a WorkerConfig")
    given = parser.parse_args()
    config = from_json(WorkerConfig, json.loads(given.config.read_text()))
    ranks = comm.init()
    log = EventLog(config.events)
    try:
        result = work(config, ranks, log if ranks.rank == 0 else _Quiet())
        if ranks.rank == 0:
            with atomic_write(config.result, "w") as stream:
                json.dump(to_json(result), stream)
            log.write("done")
        comm.finalize()
    except FairleadError as exc:
        for finding in exc.findings:
            log.write("error", rank=ranks.rank, **finding.to_json())
        raise
    except Exception as exc:
        log.write(
            "error",
            rank=ranks.rank,
            what=f"rank {ranks.rank} failed: {type(exc).__name__}",
            where=f"rank {ranks.rank} on {socket.gethostname()}",
            why=str(exc)[:2000],
        )
        raise


class _Quiet(EventLog):
    """The log of every rank but 0."""

    def __init__(self) -> None:
        super().__init__(None)

    def write(self, event: str, **fields: Any) -> None: ...


def work(config: WorkerConfig, ranks: Comm, log: EventLog) -> WorkerResult:
    """Trains, evaluates, and proves that all ranks hold the same weights. Collective.

    Returns:
        The result; complete on rank 0, elsewhere without the held-out scores of other ranks.
    Raises:
        FairleadError: the loss is no number, or the ranks' weights differ.
    """
    log.write("setup", ranks=ranks.size)
    tf = _tensorflow(config.threads)
    rows = Rows(config.data, "train", ranks.rank, ranks.size)
    steps, stopped_by = _steps(config, rows)
    network = _Network(config, ranks, steps, tf)
    initial = ranks.check_buffers_match(network.weights())
    network.broadcast(ranks)
    broadcast = _all_equal(ranks, network, "after the broadcast")
    log.write("start", ranks=ranks.size, steps=steps, max_seconds=config.max_seconds)
    trained = _train(config, ranks, network, rows, steps, log)
    if len(trained.points) < steps:
        stopped_by = "max_seconds"
    speed = _speed(trained.times[config.warmup :], config.batch * ranks.size)
    final = _all_equal(ranks, network, "after training")
    evaluation = None if config.measure_only else _evaluate(config, ranks, network, log)
    hosts = ranks.gather(socket.gethostname()) or []
    return WorkerResult(
        ranks=ranks.size,
        batch=config.batch,
        threads=config.threads,
        parameters=hepcnn.TRAINABLE,
        train_events=rows.total,
        seed=config.seed,
        mpi=_mpi_version(ranks),
        versions=_versions(tf),
        speed=speed,
        loss=tuple(trained.points),
        weights=tuple(
            RankWeights(rank, host, initial.digests[rank], broadcast[rank], final[rank])
            for rank, host in enumerate(hosts)
        ),
        train_seconds=trained.points[-1].seconds,
        epochs_done=len(trained.points) / max(rows.batches_per_epoch(config.batch), 1),
        evaluation=evaluation,
        stopped_by=stopped_by,
    )


def _tensorflow(threads: int) -> Any:
    """TensorFlow with so many threads; the variables must be set before it is loaded."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ["KERAS_BACKEND"] = "tensorflow"
    # A keras.json of the user's would change data type or layout; all ranks would write it at once.
    os.environ["KERAS_HOME"] = os.devnull
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    return tf


class _Network:
    """The model and its optimizer, as compiled functions of NumPy arrays."""

    def __init__(self, config: WorkerConfig, ranks: Comm, steps: int, tf: Any):
        import keras

        # Different on each rank on purpose: only the broadcast can make the weights equal.
        keras.utils.set_random_seed(config.seed + ranks.rank)
        model = self.model = hepcnn.build(config.dropout)
        optimizer = keras.optimizers.Adam(hepcnn.learning_rate(config.learning_rate, steps))
        variables = model.trainable_variables
        optimizer.build(variables)
        self._state = [*model.variables, *optimizer.variables]

        def gradients(images: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = hepcnn.loss(labels, model(hepcnn.prepare(images), training=True))
            gradients = tape.gradient(loss, [v.value for v in variables])
            return loss, tf.linalg.global_norm(gradients), gradients

        def apply(averaged: Any) -> None:
            optimizer.apply(averaged, variables)

        def scores(images: Any, labels: Any) -> Any:
            logits = model(hepcnn.prepare(images), training=False)
            return hepcnn.score(logits), hepcnn.loss(labels, logits)

        self.gradients = tf.function(gradients)
        self.apply = tf.function(apply)
        self.scores = tf.function(scores)

    def weights(self) -> list[comm.core.Array]:
        return [np.asarray(variable) for variable in self.model.variables]

    def broadcast(self, ranks: Comm) -> None:
        """Rank 0's weights *and* optimizer state, on every rank."""
        values = ranks.broadcast([np.asarray(variable) for variable in self._state])
        for variable, value in zip(self._state, values, strict=True):
            variable.assign(value)


def _all_equal(ranks: Comm, network: _Network, when: str) -> tuple[str, ...]:
    """The sha256 of each rank's weights, which are all the same."""
    match = ranks.check_buffers_match(network.weights())
    if match.first is not None:
        name = network.model.variables[match.first].path
        raise fail(
            f"the ranks' weights differ {when}",
            where=f"{name}, ranks {list(match.ranks)}",
            why="; ".join(f"rank {r}: {d[:12]}" for r, d in enumerate(match.digests[:8])),
            remedy="run it again with `--mpi container`; if that is well, the host MPI's Allreduce"
            " does not give all ranks the same bits",
            check="weights-differ",
        )
    return match.digests


def _steps(config: WorkerConfig, rows: Rows) -> tuple[int, str]:
    """How many steps to take if time allows, and what limits them."""
    each = rows.batches_per_epoch(config.batch)
    if each == 0:
        raise fail(
            "there are fewer events than one step needs",
            where=str(config.data),
            why=f"{rows.total} training events for batches of {config.batch} on every rank",
            remedy="lower the batch or generate more events",
            check="data-too-small",
        )
    steps = each * config.epochs
    if config.max_steps is not None and config.max_steps < steps:
        return config.max_steps, "max_steps"
    return steps, "epochs"


@dataclass(frozen=True)
class _StepTimes:
    """Seconds of one step on this rank."""

    whole: float
    input: float
    compute: float
    wait: float
    communicate: float


@dataclass(frozen=True)
class _Trained:
    points: list[LossPoint]
    times: list[_StepTimes]


def _batches(config: WorkerConfig, rows: Rows) -> Iterator[tuple[int, Samples]]:
    for epoch in range(config.epochs):
        for batch in rows.shuffled(config.batch, config.seed, epoch):
            yield epoch, batch


def _train(
    config: WorkerConfig, ranks: Comm, network: _Network, rows: Rows, steps: int, log: EventLog
) -> _Trained:
    """The loop. Loss and time ride in the gradients' fused buffer, so all ranks stop together."""
    points: list[LossPoint] = []
    times: list[_StepTimes] = []
    batches = _batches(config, rows)
    begun = time.perf_counter()
    for step in range(steps):
        start = time.perf_counter()
        epoch, batch = next(batches)
        read = time.perf_counter()
        loss, norm, gradients = network.gradients(batch.inputs, batch.targets)
        late = start - begun > config.max_seconds
        own = np.array([float(loss), float(norm), late], np.float32)
        arrays = [np.asarray(gradient) for gradient in gradients]
        before, computed = ranks.timings, time.perf_counter()
        *averaged, shared = ranks.aggregate([*arrays, own])
        aggregated = time.perf_counter()
        waited = ranks.timings.wait_s - before.wait_s
        # the gradients too: ReLU turns a NaN into 0, so bad inputs can leave the loss finite
        if not np.isfinite(shared[:2]).all():
            raise _not_finite(ranks, step, own[:2], config.learning_rate)
        network.apply(averaged)
        end = time.perf_counter()
        times.append(
            _StepTimes(
                whole=end - start,
                input=read - start,
                compute=computed - read + end - aggregated,
                wait=waited,
                communicate=aggregated - computed - waited,
            )
        )
        points.append(LossPoint(step, epoch, end - begun, float(shared[0])))
        recent = [t.whole for t in times[config.warmup :][-10:]] or [times[-1].whole]
        log.write(
            "step",
            step=step + 1,
            epoch=epoch,
            loss=float(shared[0]),
            seconds=end - begun,
            samples_per_s=config.batch * ranks.size / statistics.median(recent),
        )
        if shared[2] > 0:
            break
    return _Trained(points, times)


def _not_finite(ranks: Comm, step: int, own: comm.core.Array, rate: float) -> FairleadError:
    """Names the first rank whose loss or gradient norm (``own``) is no finite number."""
    everyone = ranks.gather(own)
    table = ranks.broadcast(
        [np.zeros((ranks.size, 2), np.float32) if everyone is None else np.array(everyone)]
    )
    losses, norms = table[0].T
    # all finite, and yet their mean is not: the sum overflowed, which rank 0 then stands for
    rank = next((r for r in range(ranks.size) if not np.isfinite(table[0][r]).all()), 0)
    name = "loss" if not math.isfinite(losses[rank]) else "gradient"
    return fail(
        f"the {name} on rank {rank} is no finite number in step {step + 1}",
        where=f"rank {rank}, step {step + 1}",
        why=f"loss {losses[rank]:.4g}, norm of the gradients {norms[rank]:.4g}",
        remedy=f"look for bad values in that rank's files, or lower the learning rate ({rate:g})",
        check="loss-not-finite",
    )


def _speed(times: list[_StepTimes], samples: int) -> Speed:
    if not times:
        raise fail(
            "no step was timed",
            where="fairlead.train.worker",
            why="all steps were warm-up, or the time was up before",
            remedy="allow more steps or seconds",
            check="too-few-steps",
        )
    whole = [t.whole for t in times]
    median = statistics.median(whole)
    return Speed(
        steps=len(times),
        samples_per_s=samples / median,
        step_median_s=median,
        step_p95_s=float(np.percentile(whole, 95)),
        compute_s=statistics.median(t.compute for t in times),
        communicate_s=statistics.median(t.communicate for t in times),
        wait_s=statistics.median(t.wait for t in times),
        input_s=statistics.fmean(t.input for t in times),
    )


def _evaluate(config: WorkerConfig, ranks: Comm, network: _Network, log: EventLog) -> Evaluation:
    """Scores the held-out events, each rank its share; AUC and ROC are rank 0's to compute."""
    begun = time.perf_counter()
    rows = Rows(config.data, "val", ranks.rank, ranks.size)
    log.write("evaluate", events=rows.total)
    scores, labels, summed = [], [], 0.0
    for batch in rows.in_order(_EVALUATION_BATCH):
        score, loss = network.scores(batch.inputs, batch.targets)
        scores.append(np.asarray(score))
        labels.append(batch.targets)
        summed += float(loss) * len(batch)
        log.write("evaluated", events=min(sum(map(len, labels)) * ranks.size, rows.total))
    mine = (np.concatenate(scores), np.concatenate(labels))
    parts = ranks.gather(mine) or [mine]
    every_score = np.concatenate([part[0] for part in parts])
    every_label = np.concatenate([part[1] for part in parts])
    loss = ranks.average(summed) * ranks.size / rows.total
    return Evaluation(
        events=rows.total,
        auc=auc(every_label, every_score),
        loss=loss,
        roc=roc(every_label, every_score),
        seconds=time.perf_counter() - begun,
    )


def _mpi_version(ranks: Comm) -> str:
    if "mpi4py.MPI" not in sys.modules:
        return ranks.backend
    from mpi4py import MPI

    return " ".join(MPI.Get_library_version().splitlines()[0].strip("\0").split())


def _versions(tf: Any) -> dict[str, str]:
    import keras

    versions = {
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "numpy": np.__version__,
    }
    if "mpi4py" in sys.modules:
        versions["mpi4py"] = sys.modules["mpi4py"].__version__
    return versions


if __name__ == "__main__":
    main()
