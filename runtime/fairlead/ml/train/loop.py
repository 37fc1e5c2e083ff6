"""The training loop of a rank: batches in, one mean of gradients a step, checkpoints on the way.

Loss, time limit and the request for a checkpoint travel in the gradients' buffer, so all ranks stop, and write, after the
same step without another message.
"""

from __future__ import annotations

import math
import signal
import socket
import statistics
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fairlead.base.errors import FairleadError, fail
from fairlead.base.serde import from_json, to_json
from fairlead.comm import Comm
from fairlead.comm.frameworks import common
from fairlead.ml.data.manifest import from_root
from fairlead.ml.data.prefetch import prefetch
from fairlead.ml.data.samples import Array, Samples
from fairlead.ml.data.shards import Rows
from fairlead.ml.task import Course
from fairlead.ml.train import checkpoint
from fairlead.ml.train.events import EventLog
from fairlead.ml.train.model import CheckpointTime, LossPoint, Marks, WorkerConfig
from fairlead.ml.train.steps import Steps, arrays, assign
from fairlead.trace.spans import span

# Under loss scaling a step that overflows is skipped; this many in a row mean that training has diverged.
_OVERFLOWS = 50
# Number of ranks whose own arrays are sent at once.
_BLOCK = 256
_FORWARDS = 5


@dataclass
class Progress:
    """How far a training is.

    Attributes:
        step: steps that are complete.
        last: the step that this launch ends with.
        resumed_from: number of them that an earlier launch took.
        points: the loss of each.
        unreadable: checkpoints that were skipped, and why; rank 0 knows them.
        forward_s: seconds of a forward pass alone; 0 if it was not measured.
    """

    step: int = 0
    last: int = 0
    resumed_from: int = 0
    points: list[LossPoint] = field(default_factory=list)
    marks: list[Marks] = field(default_factory=list)
    forward_s: float = 0.0
    written: list[CheckpointTime] = field(default_factory=list)
    unreadable: tuple[str, ...] = ()


def resume(
    config: WorkerConfig,
    ranks: Comm,
    steps: Steps,
    identity: dict[str, object],
    course: Course,
    log: EventLog,
) -> Progress:
    """Restores the last whole checkpoint on every rank; a fresh start where there is none. Collective.

    Raises:
        FairleadError: the checkpoint is of another training, or one exists and ``config.resume`` is False.
    """
    folder, each = config.checkpoints, course.steps // config.parts
    fresh = Progress(each * config.part, each * (config.part + 1), each * config.part)
    if folder is None:
        return fresh
    newest: checkpoint.Checkpoint | None = None
    unreadable: list[str] = []

    def report(words: str) -> None:
        unreadable.append(words)
        log.write("damaged", what=words)

    def look() -> tuple[int, Mapping[str, Any]] | None:
        nonlocal newest
        newest = checkpoint.start_of(folder, identity, config.resume, report)
        return (newest.step, newest.more) if newest else None

    position = from_root(ranks, look)
    if position is None:
        return replace(fresh, unreadable=tuple(unreadable))
    step, more = position
    variables = steps.shared()
    values = list(newest.shared) if newest else arrays(variables)
    assign(variables, ranks.broadcast(values))
    steps.restore(_own_of(ranks, newest))
    log.write("resumed", step=step)
    points = [from_json(LossPoint, point) for point in more["loss"]]
    return replace(fresh, step=step, resumed_from=step, points=points, unreadable=tuple(unreadable))


@contextmanager
def _signals() -> Iterator[set[int]]:
    """The warnings of the job's end that have arrived."""
    arrived: set[int] = set()
    if threading.current_thread() is not threading.main_thread():
        yield arrived
        return
    numbers = (signal.SIGUSR1, signal.SIGTERM)
    before = {n: signal.signal(n, lambda number, frame: arrived.add(number)) for n in numbers}
    try:
        yield arrived
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _own_of(ranks: Comm, newest: checkpoint.Checkpoint | None) -> list[Array]:
    """This rank's own arrays of the checkpoint that rank 0 has read. Collective.

    Sent a block of ranks at a time: the arrays of all ranks of a large run do not fit in one rank.
    """
    mine: list[Array] = []
    for begin in range(0, ranks.size, _BLOCK):
        part = newest.own[begin : begin + _BLOCK] if newest else None
        block = common.broadcast_object(ranks, part, 0)
        if begin <= ranks.rank < begin + _BLOCK:
            mine = block[ranks.rank - begin]
    return mine


@dataclass
class Loop:
    """The training of one rank, from ``progress`` on.

    Attributes:
        identity: of the training, kept in its checkpoints.
    """

    config: WorkerConfig
    course: Course
    ranks: Comm
    steps: Steps
    rows: Rows
    progress: Progress
    identity: dict[str, object]
    log: EventLog

    def run(self) -> bool:
        """Trains until the course is over or the time is up; ``progress`` is updated. Collective.

        SIGUSR1 writes a checkpoint after the step, SIGTERM writes one and ends the training on all ranks.

        Returns:
            Whether the course is over.
        Raises:
            SystemExit: after SIGTERM, with its exit code.
            FairleadError: the loss is not finite; a file is damaged; a checkpoint could not be written, which
                rank 0 alone raises.
        """
        self._writer: checkpoint.Writer | None = None
        self._leaves = False
        self._overflows = 0
        with ExitStack() as stack:
            self._signals = stack.enter_context(_signals())
            if self.config.checkpoints is not None and self.ranks.rank == 0:
                self._writer = stack.enter_context(checkpoint.Writer(self.config.checkpoints))
            batches = stack.enter_context(closing(prefetch(self._batches())))
            points = self.progress.points
            before = points[-1].seconds if points else 0.0
            self._saved_step = self.progress.resumed_from
            self._saved = self._clock = begun = time.perf_counter()
            self._begun = begun - before
            batch, late = None, False
            while self.progress.step < self.progress.last and not late:
                start = time.perf_counter_ns()
                if self.config.measure_only and self.progress.step == self.config.warmup:
                    self._clock = start / 1e9  # compiling in the first steps does not count
                batch = next(batches)
                late = self._step(batch, start)
            if batch is not None and self.config.forward_apart:
                self._measure_forward(batch)
            if self.config.checkpoints is not None and self._saved_step != self.progress.step:
                self._save()
        if self._writer is not None:
            self.progress.written = self._writer.written
        if self._leaves:
            raise SystemExit(128 + signal.SIGTERM)
        return self.progress.step >= self.progress.last

    def _batches(self) -> Iterator[Samples]:
        """The batches from here on, the same as a run would get that was never interrupted."""
        augment, seed = self.steps.recipe.augment, self.config.seed
        each = self.course.batch // self.course.ranks
        for planned in self.rows.steps(each, seed, self.progress.step):
            if augment is None:
                yield planned.batch
            else:
                key = np.random.SeedSequence(seed, spawn_key=(2, planned.step, self.ranks.rank))
                with span("augment", rows=len(planned.batch.inputs)):
                    inputs = augment(np.random.default_rng(key), planned.batch.inputs)
                yield Samples(inputs, planned.batch.targets)

    def _step(self, batch: Samples, start: int) -> bool:
        """One step, which began at ``start`` ns; whether the time is up, on any rank."""
        steps, ranks, step = self.steps, self.ranks, self.progress.step
        read = time.perf_counter_ns()
        loss, norm, gradients = steps.gradients(batch.inputs, batch.targets)
        own = np.array([loss, norm, *self._flags()], np.float32)
        waits, computed = ranks.timings.wait_s, time.perf_counter_ns()
        means, shared = steps.mean(gradients, own)
        averaged = time.perf_counter_ns()
        waited = computed + round(1e9 * (ranks.timings.wait_s - waits))
        # The gradients too: ReLU turns a NaN into 0, so bad inputs can leave the loss finite. Under loss
        # scaling they may overflow: the optimizer, which sees the same means everywhere, leaves that step out.
        finite = np.isfinite(shared[: 1 if steps.scaled else 2]).all()
        if not finite or self._overflows > _OVERFLOWS:
            raise self._not_finite(own[:2], gradients)
        steps.optimizer.learning_rate = steps.recipe.rate(self.course, step)
        self._overflows = 0 if steps.apply(means) else self._overflows + 1
        end = time.perf_counter_ns()
        arrived = min(waited, averaged)
        marks = Marks(start, read, steps.forward_over, computed, arrived, averaged, end)
        self.progress.marks.append(marks)
        if ranks.timeline is not None:
            ranks.timeline.phases(step, marks.parts, marks.borders)
        self.progress.step += 1
        epoch, seconds = step // self.course.per_epoch, end / 1e9 - self._begun
        self.progress.points.append(LossPoint(step, epoch, seconds, float(shared[0])))
        self._report()
        every = self.config.every_steps
        due = shared[3] > 0 or (every is not None and every > 0 and self.progress.step % every == 0)
        if due and self.config.checkpoints is not None:
            self._saved, self._saved_step = time.perf_counter(), self.progress.step
            self._save()
        self._leaves = bool(shared[4] > 0)
        return self._leaves or bool(shared[2] > 0)

    def _not_finite(self, own: Array, gradients: Any) -> FairleadError:
        """The error that names the first rank whose loss or gradients are not finite, its host and the tensor. Data that are
        not finite never get here. Collective; the same on all ranks.

        Args:
            own: loss and norm of the gradients of this rank, shape (2,).
            gradients: this rank's.
        """
        mine = {"own": tuple(map(float, own)), "host": socket.gethostname(), "why": ""}
        if not np.isfinite(own).all():
            odd = self.steps.odd(gradients)
            mine["why"] = f"the first such gradient is that of {odd}" if odd else ""
        every = common.broadcast_object(self.ranks, self.ranks.gather(mine), 0)
        # If all are finite and their mean is not, the sum overflowed: rank 0 is named.
        odd_ranks = (r for r, each in enumerate(every) if not all(map(math.isfinite, each["own"])))
        rank = next(odd_ranks, 0)
        (loss, norm), culprit = every[rank]["own"], every[rank]
        more = f"; {culprit['why']}" if culprit["why"] else ""
        return fail(
            "loss-not-finite",
            name="gradient" if math.isfinite(loss) else "loss",
            rank=rank,
            step=self.progress.step + 1,
            host=culprit["host"],
            loss=loss,
            norm=norm,
            more=more,
        )

    def _flags(self) -> tuple[bool, bool, bool]:
        """Whether this rank's time is up, whether it wants a checkpoint, and whether it is to leave; they travel with the
        loss."""
        writer = self._writer
        if writer is not None and not writer.busy:
            writer.wait()  # otherwise a full disk would be reported only when the next one is due
        now = time.perf_counter()
        wanted = writer is not None and not writer.busy
        wanted = wanted and now - self._saved > self.config.every_seconds
        late = now - self._clock > self.config.max_seconds
        late = late and self.progress.step + 1 >= self.config.least_steps
        warned = signal.SIGUSR1 in self._signals
        self._signals.discard(signal.SIGUSR1)
        return late, wanted or warned, signal.SIGTERM in self._signals

    def _save(self) -> None:
        """Passes the state to the writer. Collective: each rank contributes its own arrays."""
        begun, writer = time.perf_counter(), self._writer
        with span("copy the state for a checkpoint", step=self.progress.step):
            own = self.ranks.gather(self.steps.own_state())
            if writer is None:
                return
            writer.wait()  # one copy of the state at a time, and the wait counts as held
            losses = {"loss": [to_json(point) for point in self.progress.points]}
            losses["names"] = self.steps.names()
            shared = arrays(self.steps.shared())
            state = checkpoint.Checkpoint(
                self.progress.step, self.identity, shared, own or [], losses
            )
        writer.start(state, time.perf_counter() - begun)

    def _measure_forward(self, batch: Samples) -> None:
        """Median seconds of a forward pass alone; the state of dropout is put back."""
        with span("measure the forward pass apart"):
            kept, seconds = self.steps.own_state(), []
            for _ in range(_FORWARDS):
                begun = time.perf_counter()
                self.steps.forward(batch.inputs, batch.targets, training=True)
                seconds.append(time.perf_counter() - begun)
            self.steps.restore(kept)
            self.progress.forward_s = statistics.median(seconds[1:])
        if self.ranks.timeline is not None:
            self.ranks.timeline.forward_apart(round(1e9 * self.progress.forward_s))

    def _report(self) -> None:
        marks, point = self.progress.marks, self.progress.points[-1]
        recent = marks[self.config.warmup :][-10:] or marks[-1:]
        seconds = statistics.median((mark.end - mark.start) / 1e9 for mark in recent)
        self.log.write(
            "step",
            step=self.progress.step,
            epoch=point.epoch,
            loss=point.loss,
            seconds=point.seconds,
            samples_per_s=self.course.batch / seconds,
        )
