"""Every rank of a training run: ``python3 -m fairlead.ml.train.worker --config config.json``.

Synchronous data parallelism in the open: each rank computes gradients of its own batch, fairlead's
front makes them the mean over ranks through one fused buffer, and each rank applies the same update
to the same weights, which are hashed and compared at the end. The loop is :mod:`fairlead.ml.train.loop`.

Runs inside an image, or anywhere with TensorFlow or torch, Keras 3, h5py and mpi4py. Nothing hangs
when one rank fails: an error that all ranks see (a loss that is not a number, weights that differ) ends
each of them; any other exception ends all ranks by ``MPI_Abort``.

:mod:`fairlead.ml.train.host` is the other side; :mod:`fairlead.ml.train.model` the values between them.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import platform
import socket
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fairlead import comm
from fairlead.base.errors import FairleadError, fail
from fairlead.base.paths import atomic_write
from fairlead.base.serde import from_json, to_json
from fairlead.comm import Comm
from fairlead.ml import registry
from fairlead.ml.data.baseline import roc
from fairlead.ml.data.manifest import from_root, read_manifest
from fairlead.ml.data.shards import Rows
from fairlead.ml.network import parameters
from fairlead.ml.task import Course, Recipe, Task, varied
from fairlead.ml.train import loop
from fairlead.ml.train.checkpoint import newest
from fairlead.ml.train.events import EventLog
from fairlead.ml.train.model import (
    Evaluation,
    RankWeights,
    Speed,
    StepTimes,
    WorkerConfig,
    WorkerResult,
    step_times,
)
from fairlead.ml.train.steps import Steps, make_steps
from fairlead.trace.spans import span

_EVALUATION_BATCH = 100


def main() -> None:
    """The command line of one rank."""
    parser = argparse.ArgumentParser(
        prog="python3 -m fairlead.ml.train.worker", description=__doc__
    )
    parser.add_argument("--config", type=Path, required=True, help="JSON of a WorkerConfig")
    given = parser.parse_args()
    config = from_json(WorkerConfig, json.loads(given.config.read_text("utf-8")))
    ranks = comm.init()
    log = EventLog(config.events)
    try:
        result = work(config, ranks, log if ranks.rank == 0 else EventLog(Path(os.devnull)))
        if ranks.rank == 0:
            with atomic_write(config.result, "w") as stream:
                json.dump(to_json(result), stream)
            log.write("done")
        comm.finalize()
    except SystemExit:
        comm.finalize()
        raise
    except FairleadError as exc:
        log.errors(exc, rank=ranks.rank)
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


def work(config: WorkerConfig, ranks: Comm, log: EventLog) -> WorkerResult:
    """Trains, evaluates, and proves that all ranks hold the same weights. Collective.

    Returns:
        The result; complete on rank 0, elsewhere without the held-out scores of other ranks.
    Raises:
        FairleadError: the loss is NaN, the ranks' weights differ, or a checkpoint is of another
            training or cannot be written.
    """
    log.write("setup", ranks=ranks.size)
    with span("load the framework", backend=config.backend):
        framework = _framework(config)
    task = registry.find(config.model)
    recipe = _recipe(config, task, ranks.size)
    with span("look over the files"):
        rows = _rows(config, "train", ranks)
        # Checked before hours of training, since they are needed after it.
        held_out = None if config.measure_only else _rows(config, "val", ranks)
    course, stopped_by = _course(config, recipe, rows, ranks)
    import keras

    # Different on each rank on purpose: only the broadcast can make the weights equal.
    keras.utils.set_random_seed(config.seed + ranks.rank)
    with span("build the network", model=task.name):
        outputs = next(iter(rows.layout.target_shape), task.network.outputs)  # those of classes
        network = make_steps(task, recipe, course, rows.layout.input_shape, outputs)
    inherited = _inherit(config, ranks, network)
    with span("give all ranks the same weights"):
        initial = ranks.check_buffers_match(network.weights())
        network.broadcast(ranks)
        broadcast = _all_equal(ranks, network, "after the broadcast")
    identity = _identity(config, task, course, rows, network)
    progress = loop.resume(config, ranks, network, identity, course, log)
    log.write(
        "start",
        ranks=ranks.size,
        steps=progress.last,
        begin=progress.step,
        max_seconds=config.max_seconds,
    )
    with span("train"):
        over = loop.Loop(config, course, ranks, network, rows, progress, identity, log).run()
    with span("compare the weights"):
        final = _all_equal(ranks, network, "after training")
    host = socket.gethostname()
    mine = step_times(progress.marks, ranks.rank, host, progress.forward_s)
    times = ranks.gather(mine) or []
    with span("evaluate"):
        evaluation = None if held_out is None else _evaluate(held_out, ranks, network, log)
    return WorkerResult(
        model=task.name,
        backend=config.backend,
        precision=config.precision,
        ranks=ranks.size,
        batch=recipe.batch,
        threads=config.threads,
        parameters=parameters(network.model),
        train_samples=rows.total,
        seed=config.seed,
        mpi=_mpi_version(ranks),
        versions=_versions(framework),
        speed=_speed(config, mine, course.batch),
        loss=tuple(progress.points),
        weights=tuple(
            RankWeights(t.rank, t.host, initial.digests[t.rank], broadcast[t.rank], final[t.rank])
            for t in times
        ),
        train_seconds=progress.points[-1].seconds,
        epochs_done=progress.step / course.per_epoch,
        evaluation=evaluation,
        stopped_by=stopped_by if over else "max_seconds",
        steps=tuple(times),
        checkpoints=tuple(progress.written),
        resumed_from=progress.resumed_from,
        inherited=inherited,
        damaged=tuple(
            str(damage.path)
            for split in (rows, held_out)
            if split is not None
            for damage in split.manifest.damaged
        ),
        unreadable=progress.unreadable,
        warmup=config.warmup,
    )


def _inherit(config: WorkerConfig, ranks: Comm, network: Steps) -> int:
    """Takes what fits of another training's last checkpoint, on rank 0; how many arrays. Collective.

    Raises:
        FairleadError: there is none.
    """
    source = config.source
    if source is None:
        return 0

    def take() -> int:
        unreadable: list[str] = []
        checkpoint = newest(source, unreadable.append)
        if checkpoint is None:
            raise fail("inherit-nothing", source=source, reason="; ".join(unreadable) or "is empty")
        return network.inherit(checkpoint.named, config.part > 0)

    return from_root(ranks, take)


def _framework(config: WorkerConfig) -> Any:
    """Loads Keras on its backend with the configured threads; its variables must be set before."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ["OMP_NUM_THREADS"] = str(config.threads)
    os.environ["KERAS_BACKEND"] = config.backend
    # A keras.json of the user's would change data type or layout; all ranks would write it at once.
    os.environ["KERAS_HOME"] = os.devnull
    framework: Any = importlib.import_module(config.backend)
    if config.backend == "torch":
        framework.set_num_threads(config.threads)
    else:
        framework.config.threading.set_intra_op_parallelism_threads(config.threads)
        framework.config.threading.set_inter_op_parallelism_threads(1)
    import keras

    keras.mixed_precision.set_global_policy(config.precision)
    return framework


def _rows(config: WorkerConfig, split: str, ranks: Comm) -> Rows:
    """This rank's share of a split, without damaged files if so configured. Collective.

    To find damage that only checksums show, all files are read first.

    Raises:
        FairleadError: on every rank: there are no files, or one is damaged, such as one without a sample.
    """
    skip, external = config.skip_damaged, config.external_data
    manifest = read_manifest(
        config.data, split, skip_damaged=skip, verify=skip, external=external, together=ranks
    )
    return Rows(manifest, split, ranks.rank, ranks.size, threads=config.threads)


def _recipe(config: WorkerConfig, task: Task, ranks: int) -> Recipe:
    """The task's recipe for one of ``ranks`` ranks, with the configuration's overrides."""
    recipe = task.published if config.published else task.quick
    recipe = replace(recipe, batch=recipe.each(ranks), together=False)
    asked = {name: getattr(config, name) for name in ("batch", "epochs", "dropout")}
    recipe = replace(recipe, **{name: value for name, value in asked.items() if value is not None})
    return varied(recipe, config.parameters) if config.parameters else recipe


def _course(config: WorkerConfig, recipe: Recipe, rows: Rows, ranks: Comm) -> tuple[Course, str]:
    """How many steps to take if time allows, and what limits them."""
    each = rows.batches_per_epoch(recipe.batch)
    if each == 0:
        raise fail(
            "data-too-small-training", data=config.data, total=rows.total, batch=recipe.batch
        )
    steps, stopped_by = each * recipe.epochs * config.parts, "epochs"
    if config.max_steps is not None and config.max_steps < steps:
        steps, stopped_by = config.max_steps, "max_steps"
    return Course(recipe.batch * ranks.size, steps, each, ranks.size), stopped_by


def _identity(
    config: WorkerConfig, task: Task, course: Course, rows: Rows, network: Steps
) -> dict[str, object]:
    """The facts that a checkpoint and the training that continues from it must share."""
    files = [(shard.path.name, shard.rows) for shard in rows.manifest.shards]
    return {
        "model": task.name,
        "recipe": "published" if config.published else "quick",
        "backend": config.backend,
        "precision": config.precision,
        "parameters": parameters(network.model),
        "optimizer": type(network.optimizer).__name__,
        "dropout": network.recipe.dropout,
        "seed": config.seed,
        "batch": course.batch,
        "ranks": course.ranks,
        "steps": course.steps,
        "samples": rows.total,
        # They determine the order of the samples.
        "files": hashlib.sha256(repr(files).encode()).hexdigest()[:16],
        **(
            {"tuned": json.dumps(dict(config.parameters), sort_keys=True)}
            if config.parameters
            else {}
        ),
    }


def _all_equal(ranks: Comm, network: Steps, when: str) -> tuple[str, ...]:
    """The sha256 of each rank's weights, which are all the same."""
    match = ranks.check_buffers_match(network.weights())
    if match.first is not None:
        name = network.variables[match.first].path
        raise fail(
            "weights-differ",
            when=when,
            name=name,
            ranks=list(match.ranks),
            digests="; ".join(f"rank {r}: {d[:12]}" for r, d in enumerate(match.digests[:8])),
        )
    return match.digests


def _speed(config: WorkerConfig, steps: StepTimes, samples: int) -> Speed | None:
    """How fast this launch's steps were; None for a training that had no more of them than its warm-up."""
    timed = steps.after(config.warmup)
    whole = timed.whole_s
    if not whole:
        if config.measure_only:
            raise fail("too-few-steps")
        return None
    step, forward, update = (statistics.median(t) for t in (whole, timed.forward_s, timed.update_s))
    both = map(sum, zip(timed.forward_s, timed.backward_s, strict=True))
    return Speed(
        steps=len(whole),
        samples_per_s=samples / step,
        step_median_s=step,
        step_p95_s=float(np.percentile(whole, 95)),
        compute_s=statistics.median(both) + update,
        communicate_s=statistics.median(timed.exposed_s),
        wait_s=statistics.median(timed.idle_s),
        input_s=statistics.fmean(timed.input_s),
        forward_s=forward,
        update_s=update,
    )


def _evaluate(rows: Rows, ranks: Comm, network: Steps, log: EventLog) -> Evaluation:
    """The network's scores on held-out samples: each rank evaluates its share, rank 0 computes the scores.

    A rank's share may be empty. BatchNorm's statistics are averaged over ranks first, so that the result does not
    depend on which rank evaluates a sample.
    """
    import keras

    begun = time.perf_counter()
    network.average_statistics(ranks)
    log.write("evaluate", samples=rows.total)
    outputs = [np.zeros((0, network.model.output_shape[-1]), np.float32)]
    targets = [rows.layout.empty(0).targets]
    summed, done = 0.0, 0
    for batch in rows.in_order(_EVALUATION_BATCH):
        loss, output = network.forward(batch.inputs, batch.targets, training=False)
        outputs.append(np.asarray(keras.ops.convert_to_numpy(output), np.float32))
        targets.append(batch.targets.copy())
        summed += loss * len(batch.targets)
        done += len(batch.targets)
        log.write("evaluated", samples=min(done * ranks.size, rows.total))
    parts = ranks.gather((np.concatenate(outputs), np.concatenate(targets)))
    loss = ranks.average(summed) * ranks.size / rows.total
    scores: dict[str, float] = {}
    curve: tuple[tuple[float, float], ...] = ()
    if parts:
        predicted, wanted = (np.concatenate(each) for each in zip(*parts, strict=True))
        scores = {k: float(value) for k, value in network.task.scores(wanted, predicted).items()}
        curve = roc(wanted, predicted[:, 1] - predicted[:, 0]) if "auc" in scores else ()
    return Evaluation(rows.total, scores, loss, curve, time.perf_counter() - begun)


def _mpi_version(ranks: Comm) -> str:
    if "mpi4py.MPI" not in sys.modules:
        return ranks.backend
    from mpi4py import MPI

    return " ".join(MPI.Get_library_version().splitlines()[0].strip("\0").split())


def _versions(framework: Any) -> dict[str, str]:
    import keras

    versions = {
        "python": platform.python_version(),
        framework.__name__: framework.__version__,
        "keras": keras.__version__,
        "numpy": np.__version__,
    }
    if "mpi4py" in sys.modules:
        versions["mpi4py"] = sys.modules["mpi4py"].__version__
    return versions


if __name__ == "__main__":
    main()
