"""The training loop of a rank: batches in, one mean of gradients a step, checkpoints on the way.

Loss, time and the wish for a checkpoint ride in the gradients' own buffer, so all ranks stop, and write, after the same
step without a further message.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

import numpy as np

from fairlead.base.errors import FairleadError
from fairlead.base.serde import from_json, to_json
from fairlead.comm import Comm
from fairlead.comm.frameworks import common
from fairlead.ml.data.prefetch import prefetch
from fairlead.ml.data.samples import Array, Samples
from fairlead.ml.data.shards import Rows
from fairlead.ml.task import Course
from fairlead.ml.train import checkpoint, not_finite
from fairlead.ml.train.events import EventLog
from fairlead.ml.train.model import LossPoint, WorkerConfig
from fairlead.ml.train.steps import Steps, arrays, assign
from fairlead.ml.train.times import Marks, Times
from fairlead.trace.spans import span

# Under loss scaling a step that overflows is left out; so many in a row mean that training is over.
_OVERFLOWS = 50
# Ranks whose own arrays are sent at once.
_BLOCK = 256
_FORWARDS = 5


@dataclass
class Progress:
    """How far a training is.

    Attributes:
        step: steps that are over.
        resumed_from: of those, by an earlier launch.
        points: the loss of each.
        unreadable: checkpoints that were passed over, and why.
        forward_s: seconds of a forward pass alone; 0 where it was not measured.
    """

    step: int = 0
    resumed_from: int = 0
    points: list[LossPoint] = field(default_factory=list)
    times: Times = field(default_factory=Times)
    forward_s: float = 0.0
    written: list[checkpoint.Written] = field(default_factory=list)
    unreadable: tuple[str, ...] = ()


def resume(
    config: WorkerConfig, ranks: Comm, steps: Steps, identity: dict[str, object], log: EventLog
) -> Progress:
    """The last whole checkpoint, on every rank; a new beginning where there is none. Collective.

    Raises:
        FairleadError: the checkpoint is of another training, or one is there and was not to be gone on with.
    """
    folder, found, error = config.checkpoints, None, None
    if folder is None:
        return Progress()
    unreadable: list[str] = []
    if ranks.rank == 0:
        try:
            if config.resume:
                found = checkpoint.newest(folder, unreadable.append)
                if found is not None:
                    checkpoint.require_same(found, identity, folder)
            else:
                checkpoint.require_none(folder)
        except FairleadError as exc:
            error = exc
    told = (found.step, found.told) if found else None
    error, told, unreadable = common.broadcast_object(ranks, (error, told, unreadable), 0)
    for words in unreadable:
        log.write("damaged", what=words)
    if error is not None:
        raise error
    if told is None:
        return Progress(unreadable=tuple(unreadable))
    step, more = told
    variables = steps.shared()
    values = list(found.shared) if found else arrays(variables)
    assign(variables, ranks.broadcast(values))
    steps.restore(_own_of(ranks, found))
    log.write("resumed", step=step)
    points = [from_json(LossPoint, point) for point in more["loss"]]
    return Progress(step, step, points, unreadable=tuple(unreadable))


def _own_of(ranks: Comm, found: checkpoint.Checkpoint | None) -> list[Array]:
    """This rank's own arrays of what rank 0 has read. Collective.

    A block of ranks at a time: what all of a large run have for themselves is too much for each of them.
    """
    mine: list[Array] = []
    for begin in range(0, ranks.size, _BLOCK):
        part = found.own[begin : begin + _BLOCK] if found else None
        block = common.broadcast_object(ranks, part, 0)
        if begin <= ranks.rank < begin + _BLOCK:
            mine = block[ranks.rank - begin]
    return mine


def run(
    config: WorkerConfig, course: Course, ranks: Comm, steps: Steps, rows: Rows,
    progress: Progress, identity: dict[str, object], log: EventLog,
) -> bool:  # fmt: skip
    """Trains until the course is over or the time is up; ``progress`` is carried on. Collective.

    Returns:
        Whether the course is over.
    Raises:
        FairleadError: the loss is no finite number; a file is damaged; a checkpoint could not be written, which
            rank 0 alone raises.
    """
    with ExitStack() as stack:
        writer = None
        if config.checkpoints is not None and ranks.rank == 0:
            writer = stack.enter_context(checkpoint.Writer(config.checkpoints))
        source = _batches(config, course, ranks, steps, rows, progress.step)
        batches = stack.enter_context(closing(prefetch(source)))
        batch, kept = None, progress.resumed_from
        before = progress.points[-1].seconds if progress.points else 0.0
        begun = saved = clock = time.perf_counter()
        overflows, late = 0, False
        while progress.step < course.steps and not late:
            step, start = progress.step, time.perf_counter_ns()
            if config.measure_only and step == config.warmup:
                clock = (
                    start / 1e9
                )  # what is compiled in the first steps takes no time from those that count
            batch = next(batches)
            read = time.perf_counter_ns()
            found = steps.gradients(batch.inputs, batch.targets)
            loss, norm = steps.own(found)
            if writer is not None and not writer.busy:
                writer.wait()  # or a full disk would be told when the next one is due
            now = time.perf_counter()
            wanted = writer is not None and not writer.busy and now - saved > config.every_seconds
            over = now - clock > config.max_seconds and step + 1 >= config.least_steps
            own = np.array([loss, norm, over, wanted], np.float32)
            waits, computed = ranks.timings.wait_s, time.perf_counter_ns()
            means, shared = steps.mean(found, own)
            averaged = time.perf_counter_ns()
            waited = computed + round(1e9 * (ranks.timings.wait_s - waits))
            # The gradients too: ReLU turns a NaN into 0, so bad inputs can leave the loss finite. Under loss
            # scaling they may overflow: the optimizer, which sees the same means everywhere, leaves that step out.
            if not np.isfinite(shared[: 1 if steps.scaled else 2]).all() or overflows > _OVERFLOWS:
                raise not_finite.error(ranks, step, own[:2], steps, found, batch, rows)
            steps.set_rate(steps.recipe.rate(course, step))
            overflows = 0 if steps.apply(means) else overflows + 1
            end = time.perf_counter_ns()
            marks = Marks(
                start, read, steps.forward_over, computed, min(waited, averaged), averaged, end
            )
            progress.times.marks.append(marks)
            if ranks.timeline is not None:
                ranks.timeline.phases(step, marks.parts, marks.borders)
            progress.step += 1
            epoch = step // course.per_epoch
            seconds = before + end / 1e9 - begun
            progress.points.append(LossPoint(step, epoch, seconds, float(shared[0])))
            _tell(log, config, course, progress)
            late = shared[2] > 0
            if config.checkpoints is not None and (
                shared[3] > 0 or (config.every_steps and progress.step % config.every_steps == 0)
            ):
                saved, kept = time.perf_counter(), progress.step
                _save(ranks, steps, progress, identity, writer)
        if batch is not None and config.forward_apart:
            with span("measure the forward pass apart"):
                progress.forward_s = _forward(steps, batch)
            if ranks.timeline is not None:
                ranks.timeline.forward_apart(round(1e9 * progress.forward_s))
        if config.checkpoints is not None and kept != progress.step:
            _save(ranks, steps, progress, identity, writer)
    if writer is not None:
        progress.written = writer.written
    return progress.step >= course.steps


def _batches(
    config: WorkerConfig, course: Course, ranks: Comm, steps: Steps, rows: Rows, begin: int
) -> Iterator[Samples]:
    """The batches from step ``begin`` on, the same as a run would get that was never interrupted."""
    augment = steps.recipe.augment
    for one in rows.steps(course.batch // course.ranks, config.seed, begin):
        if augment is None:
            yield one.batch
        else:
            key = np.random.SeedSequence(config.seed, spawn_key=(2, one.step, ranks.rank))
            with span("augment", rows=len(one.batch.inputs)):
                inputs = augment(np.random.default_rng(key), one.batch.inputs)
            yield Samples(inputs, one.batch.targets)


def _save(
    ranks: Comm, steps: Steps, progress: Progress, identity: dict[str, object],
    writer: checkpoint.Writer | None,
) -> None:  # fmt: skip
    """Hands the state to the writer. Collective: each rank gives what is its own."""
    begun = time.perf_counter()
    with span("copy the state for a checkpoint", step=progress.step):
        own = ranks.gather(steps.own_state())
        if writer is None:
            return
        writer.wait()  # one copy of the state at a time, and the wait is part of what is told
        told = {"loss": [to_json(point) for point in progress.points]}
        shared = arrays(steps.shared())
        state = checkpoint.Checkpoint(progress.step, identity, shared, own or [], told)
    writer.start(state, time.perf_counter() - begun)


def _forward(steps: Steps, batch: Samples) -> float:
    """Median seconds of a forward pass alone; the state of dropout is put back."""
    kept, seconds = steps.own_state(), []
    for _ in range(_FORWARDS):
        begun = time.perf_counter()
        steps.forward(batch.inputs, batch.targets)
        seconds.append(time.perf_counter() - begun)
    steps.restore(kept)
    return statistics.median(seconds[1:])


def _tell(log: EventLog, config: WorkerConfig, course: Course, progress: Progress) -> None:
    recent = progress.times.whole[config.warmup :][-10:] or progress.times.whole[-1:]
    point = progress.points[-1]
    log.write(
        "step",
        step=progress.step,
        epoch=point.epoch,
        loss=point.loss,
        seconds=point.seconds,
        samples_per_s=course.batch / statistics.median(recent),
    )
