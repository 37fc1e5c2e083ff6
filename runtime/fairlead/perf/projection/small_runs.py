"""Small runs: what is measured at 1, 2, 4, … ranks, and how it is read from a file.

Two kinds of file are read: a list of :class:`SmallRun` (``fairlead/small-runs``), which separates computing from
communication, or the ``validation.json`` of :mod:`fairlead.perf.records.validation`, which has rates of whole steps only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead.base import bounded_json
from fairlead.base.errors import ExitCode, FairleadError, error, fail
from fairlead.base.serde import from_json, to_json
from fairlead.ml.models import cosmoflow, hepcnn
from fairlead.perf.records.validation import SCHEMA as VALIDATION
from fairlead.perf.records.validation import Measurement, What

SCHEMA, SCHEMA_VERSION = "fairlead/small-runs", 1
# Beyond them the fit's squares leave the range of numbers.
_LEAST_S, _MOST_S = 1e-9, 1e9
_EXAMPLE = "docs/explanation/projection.md has an example"
# Trainable parameters of bundled networks whose name says all; of others, as of reduced ones, --bytes is asked for.
PARAMETERS = {
    network.name: network.trainable
    for network in (hepcnn.NETWORK, hepcnn.network_224(), cosmoflow.sc18_network())
    if network.trainable
} | {"hepcnn": hepcnn.TRAINABLE}  # what `fairlead train hepcnn` trains


@dataclass(frozen=True)
class SmallRun:
    """One run of a few ranks. All times are seconds of one step.

    Attributes:
        ranks, nodes: in all.
        compute_s: shape (ranks, steps); or (1, steps) where only one rank was looked at.
        communicate_s: of the allreduce alone, from when its last rank came; shape (steps,); empty of one rank.
        wait_s: of the mean rank, until the last one came; shape (steps,); empty where unknown.
        input_s: until the input pipeline has a batch; shape (steps,); empty where it costs nothing.
        bytes: of gradients.
        local_batch: samples a rank and step.
        step_s: of whole steps, all included; shape (steps,); empty where unknown. The overlap is fitted to it.
    """

    ranks: int
    nodes: int
    compute_s: tuple[tuple[float, ...], ...]
    bytes: int
    local_batch: int
    communicate_s: tuple[float, ...] = ()
    wait_s: tuple[float, ...] = ()
    input_s: tuple[float, ...] = ()
    step_s: tuple[float, ...] = ()

    @property
    def mistakes(self) -> list[str]:
        """What cannot be."""
        steps = {len(rank) for rank in self.compute_s}
        no_steps = not max(steps, default=0) and not self.step_s
        rules = {
            f"{self.ranks} ranks on {self.nodes} nodes": self.nodes < 1 or self.ranks < self.nodes,
            f"{self.bytes} bytes, a local batch of {self.local_batch}: both start at 1": (
                self.bytes < 1 or self.local_batch < 1
            ),
            "`compute_s` has not as many steps of each rank, or none": len(steps) > 1 or no_steps,
            f"`compute_s` has {len(self.compute_s)} ranks of {self.ranks}": (
                len(self.compute_s) not in (0, 1, self.ranks)
            ),
            "`communicate_s` is empty, of several ranks": self.ranks > 1 and not self.communicate_s,
        }
        mistakes = [words for words, wrong in rules.items() if wrong]
        above_0 = {"compute_s": [t for rank in self.compute_s for t in rank], "step_s": self.step_s}
        from_0 = {name: getattr(self, name) for name in ("communicate_s", "wait_s", "input_s")}
        for name, times in (above_0 | from_0).items():
            if not all(_LEAST_S <= t <= _MOST_S or (t == 0 and name in from_0) for t in times):
                mistakes.append(f"`{name}` has a time that is none")
        return mistakes


def small_runs_json(runs: Sequence[SmallRun]) -> dict[str, Any]:
    """As :func:`read` reads it."""
    return {"schema": SCHEMA, "version": SCHEMA_VERSION, "runs": to_json(tuple(runs))}


def read(
    path: Path, model: str = "", size: int | None = None, batch: int | None = None
) -> tuple[SmallRun, ...]:
    """The runs of a file.

    Args:
        model, size, batch: of a validation, whose model, bytes of gradients and local batch; see :func:`of_rates`.
    Raises:
        FairleadError: exit code 2; the file cannot be read, is neither kind, or has what cannot be: all at once.
    """
    try:
        data = bounded_json.loads(path.read_bytes())
    except OSError as exc:
        raise fail("project-runs-unreadable", path=path, reason=exc.strerror or str(exc)) from None
    except (ValueError, RecursionError) as exc:
        raise fail("project-runs-not-json", path=path, reason=exc) from None
    schema = data.get("schema") if isinstance(data, Mapping) else None
    try:
        if schema == VALIDATION:
            measured = tuple(from_json(Measurement, m) for m in _list(data, "measurements"))
            return of_rates(measured, path, model, size, batch)
        if schema == SCHEMA and data.get("version") == SCHEMA_VERSION:
            return _checked(tuple(from_json(SmallRun, r) for r in _list(data, "runs")), path)
    except ValueError as exc:
        raise fail("project-runs-invalid", path=path, reason=exc) from None
    why = f"its schema is {schema!r}; `{SCHEMA}` of version {SCHEMA_VERSION} and `{VALIDATION}` are known"
    raise fail("project-runs", path=path, why=why, example=_EXAMPLE)


def _list(data: Mapping[str, Any], key: str) -> list[Any]:
    if not isinstance(data.get(key), list):
        raise ValueError(f"`{key}` is not a list")
    items: list[Any] = data[key]
    return items


def _checked(runs: tuple[SmallRun, ...], path: Path) -> tuple[SmallRun, ...]:
    wrong = [
        error("project-runs-invalid-run", path=path, number=number, mistake=mistake)
        for number, run in enumerate(runs, 1)
        for mistake in run.mistakes
    ]
    if wrong:
        raise FairleadError(wrong, ExitCode.USAGE)
    if not runs:
        raise fail("project-runs-empty", path=path)
    return runs


def of_rates(
    measured: Sequence[Measurement], path: Path, model: str, size: int | None, batch: int | None
) -> tuple[SmallRun, ...]:
    """Runs from a validation: training rates at several rank counts, and allreduces.

    A rate gives the time of whole steps. Computing is that of one rank; the allreduce is interpolated between the
    measured sizes of the same ranks. What neither explains is left to the fit.

    Args:
        model: whose training; the only one where it is empty.
        size: bytes of gradients; those of a bundled model are known.
        batch: local batch at which it was trained.
    Raises:
        FairleadError: exit code 2; what is needed is not there.
    """
    # Ranks that share a core measure the sharing.
    measured = [m for m in measured if not m.crowded]
    trained = [m for m in measured if m.what is What.TRAIN and min(m.samples, default=0) > 0]
    names = sorted({m.subject for m in trained})
    if not names:
        why = "it has no training rates of ranks that have a core each"
        raise fail("project-runs-validation-unfit", path=path, why=why)
    if not model and len(names) > 1:
        raise fail("project-runs-several-models", path=path, names=", ".join(names))
    name = model or names[0]
    chosen = [m for m in trained if m.subject == name]
    size = size or 4 * PARAMETERS.get(name, 0)  # float32
    needed = {"--model": chosen, "--bytes": size, "--batch": batch}
    if absent := [option for option, value in needed.items() if not value]:
        why = f"of `{name}`, trained were {', '.join(names)}; a rate gives neither gradients nor batch"
        raise fail("project-runs-absent-fields", path=path, why=why, absent=" and ".join(absent))
    assert batch is not None
    way = min(chosen, key=lambda m: m.ranks).way  # native before container, as they were measured
    runs = []
    for m in sorted((m for m in chosen if m.way is way), key=lambda m: m.ranks):
        times = tuple(batch * m.ranks / rate for rate in m.samples)
        if m.ranks == 1:
            runs.append(SmallRun(1, m.nodes, (times,), size, batch))
        else:
            moving = _allreduce(measured, m, size, path)
            runs.append(SmallRun(m.ranks, m.nodes, (), size, batch, moving, step_s=times))
    if not runs or runs[0].ranks > 1 or runs[-1].ranks == 1:
        why = f"`{name}` was not trained on one rank, or on one rank only"
        raise fail("project-runs-too-few", path=path, why=why)
    return _checked(tuple(runs), path)


def _allreduce(
    measured: Sequence[Measurement], run: Measurement, size: int, path: Path
) -> tuple[float, ...]:
    """Seconds of ``size`` bytes on a line through the two nearest sizes; as many as both have samples.

    Of ``fairlead.comm``, through which trainings average, where it was measured; else of plain MPI.
    """
    there = [
        m
        for m in measured
        if m.what is What.ALLREDUCE
        and (m.way, m.ranks, m.nodes) == (run.way, run.ranks, run.nodes)
        and m.bytes
        and m.samples
    ]
    if not there:
        why = f"no allreduce was measured on {run.ranks} ranks, {run.nodes} nodes"
        raise fail("project-runs-other-collectives", path=path, why=why)
    series = [m for m in there if m.subject.startswith("fairlead.comm")] or there
    by_size = {m.bytes: m for m in series}
    near, *others = sorted(by_size.values(), key=lambda m: abs(math.log((m.bytes or 1) / size)))
    a = near.bytes or 1
    if not others or a == size:
        return tuple(t * size / a for t in near.samples)
    other, b = others[0], others[0].bytes or 1
    lines = zip(near.samples, other.samples, strict=False)
    return tuple(max(s + (t - s) * (size - a) / (b - a), 0.0) for s, t in lines)
