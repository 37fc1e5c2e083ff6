"""What clients have done in a session, by phase, and whether sending has paid."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairlead.bridge.settings import OPERATIONS, SERVER

PHASES = ("serialise", "send", "receive", "seal", "read", "redistribute", "compute", "write", "fetch")  # fmt: skip
_MOST = 1000  # operations that a report shows
_K = 20  # of the measurements of MLlib
_TRANSFERS = ("send", "read", "layout")


@dataclass(frozen=True)
class Operation:
    """Something that a client has had done.

    Attributes:
        kind: ``send``, ``read``, ``layout``, ``run``, ``fetch`` or ``write``.
        what: the function, the kind of data, or the path.
        inputs, outputs: numbers of matrices.
        rows, cols: of the first matrix.
        phases: seconds, as mean and slowest over partitions or ranks.
        rank: the slowest in computing; -1 where that is not known.
        params: of a function, as text.
    """

    kind: str
    what: str
    client: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    rows: int = 0
    cols: int = 0
    bytes: int = 0
    phases: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    wall_s: float = 0.0
    rank: int = -1
    params: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Operation:
        lists = {name: tuple(values.get(name, ())) for name in ("inputs", "outputs")}
        phases = {name: (float(m), float(s)) for name, (m, s) in values.get("phases", {}).items()}
        return cls(**{**values, **lists, "phases": phases})

    @property
    def title(self) -> str:
        return f"{self.kind} {self.what}".removeprefix("run ").strip()


@dataclass(frozen=True)
class Mllib:
    """How long MLlib takes for a function, estimated from one measurement.

    Attributes:
        seconds: measured, in the image ``analytics`` on ``cores`` cores, for a cached table of ``rows`` × ``cols``, k = 20.
        power: of the number of columns, by which it grows; that of rows is 1.
        by_k: whether it grows with k.
        least: values of a table below which nothing is estimated: Spark's time for each job rules there.
        widest: columns above which nothing is estimated: on 200 × 100,000 ARPACK took 76 s, or did not converge.
    """

    seconds: float
    rows: int
    cols: int
    power: int
    by_k: bool = False
    cores: int = 2
    least: int = 10_000_000
    widest: int = 10_000

    def estimate(self, rows: int, cols: int, cores: int, k: int = _K) -> float | None:
        """Seconds; None where that cannot be said."""
        if rows * cols < self.least or cols > self.widest:
            return None
        scale = rows / self.rows * (cols / self.cols) ** self.power * (k / _K if self.by_k else 1)
        return self.seconds * scale * self.cores / max(cores, 1)

    @property
    def source(self) -> str:
        grows = "rows × columns" if self.power == 1 else f"rows × columns^{self.power}"
        grows += " × k" if self.by_k else ""
        return f"{self.seconds:g} s measured for {self.rows:,} × {self.cols:,}, k = {_K}, on {self.cores} cores, scaled by {grows} and cores"


# By function. MLlib's SVD passes over the table for each step of ARPACK: 7 s where singular values fall by a fifth from
# one to the next, 45 s where they are nearly equal. Its PCA makes the covariance of all columns. Its k-means|| took 19.5 s
# with two of Lloyd's iterations; more of them take longer.
MLLIB = {
    "linalg.svd": Mllib(7.0, 80_000, 1_000, 1),
    "linalg.pca": Mllib(30.0, 80_000, 1_000, 2),
    "linalg.kmeans": Mllib(19.5, 80_000, 1_000, 1, by_k=True),
}


@dataclass(frozen=True)
class Paid:
    """A run of a function against MLlib.

    Attributes:
        mllib_s: seconds of MLlib.
        source: where an estimate comes from; "" for a measurement.
    """

    called: str
    bytes: int
    transfer_s: float
    compute_s: float
    fetch_s: float
    mllib_s: float
    source: str

    @property
    def total_s(self) -> float:
        return self.transfer_s + self.compute_s + self.fetch_s

    def __str__(self) -> str:
        ours = (
            f"{self.called}: {self.total_s:.2f} s (transfer {self.transfer_s:.2f} + compute {self.compute_s:.2f} + "
            f"fetch {self.fetch_s:.2f})"
        )
        left = self.mllib_s - self.compute_s - self.fetch_s
        how = (
            f"an estimated {self.mllib_s:.3g} s or more" if self.source else f"{self.mllib_s:.3g} s"
        )
        verdict = "the transfer paid" if self.transfer_s < left else "the transfer did not pay"
        text = f"{ours} against {how} of MLlib, {self.mllib_s / self.total_s:.2g} times as long: {verdict}"
        if left <= 0:
            return f"{text}; computing alone takes longer than MLlib"
        return f"{text}; break-even at {_rate(self.bytes, left)}, here {_rate(self.bytes, self.transfer_s)}"


def _rate(size: int, seconds: float) -> str:
    rate = size / max(seconds, 1e-9)
    return f"{rate / 1e9:.2g} GB/s" if rate >= 1e8 else f"{rate / 1e6:.2g} MB/s"


class Timings:
    """The operations of a session; as text, a table of their phases and a line for each run that MLlib could do.

    Attributes:
        cores: of all ranks; estimates are for as many.
        mllib_s: measured seconds of MLlib by function; estimates stand in for those that are not there.
    """

    def __init__(
        self,
        operations: Iterable[Operation],
        cores: int,
        mllib_s: Mapping[str, float] | None = None,
    ):
        self.operations = tuple(operations)
        self.cores, self.mllib_s = cores, dict(mllib_s or {})

    @property
    def paid(self) -> list[Paid]:
        """For each run of a function that MLlib has, whether sending its matrices paid."""
        runs = [operation for operation in self.operations if operation.kind == "run"]
        return [paid for run in runs if (paid := self._paid(run)) is not None]

    def _paid(self, run: Operation) -> Paid | None:
        seconds, source = self.mllib_s.get(run.what), ""
        if seconds is None and (known := MLLIB.get(run.what)):
            k = int(run.params.get("k", _K))
            seconds, source = known.estimate(run.rows, run.cols, self.cores, k), known.source
        if seconds is None:
            return None
        transfers = self._transfers(run.inputs)
        fetches = [
            operation
            for operation in self.operations
            if operation.kind == "fetch" and set(operation.inputs) & set(run.outputs)
        ]
        size = sum(transfer.bytes for transfer in transfers if transfer.kind != "layout")
        times = [
            sum(operation.wall_s for operation in part) for part in (transfers, [run], fetches)
        ]
        return Paid(run.what, size, times[0], times[1], times[2], seconds, source)

    def _transfers(self, matrices: Sequence[str]) -> list[Operation]:
        """What brought these matrices where they are."""
        made = {number: operation for operation in self.operations for number in operation.outputs}
        transfers, wanted = [], list(matrices)
        while wanted:
            operation = made.pop(wanted.pop(), None)
            if operation and operation.kind in _TRANSFERS:
                transfers.append(operation)
                wanted += operation.inputs
        return transfers

    def __str__(self) -> str:
        lines = [_line(operation) for operation in self.operations]
        paid = self.paid
        lines += [str(result) for result in paid]
        sources = {f"{result.called}: {result.source}" for result in paid if result.source}
        lines += [f"estimate of {source}" for source in sorted(sources)]
        return "\n".join(lines) or "nothing was sent or computed"


def _line(operation: Operation) -> str:
    size = f", {operation.rows:,} × {operation.cols:,}" if operation.rows or operation.cols else ""
    amount = f", {operation.bytes / 1e6:,.1f} MB" if operation.bytes else ""
    parts = [
        f"{name} {operation.phases[name][0]:.2f}/{operation.phases[name][1]:.2f}"
        for name in PHASES
        if name in operation.phases
    ]
    slow = f", slowest rank {operation.rank}" if operation.rank >= 0 else ""
    return f"{operation.title}{size}{amount}: {operation.wall_s:.2f} s; {', '.join(parts)} (mean/slowest s{slow})"


def done_in(session: Path) -> Timings:
    """What was done in a session, from its folder."""
    file, server = session / OPERATIONS, json.loads((session / SERVER).read_text("utf-8"))
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    done = (Operation.from_json(json.loads(line)) for line in lines[-_MOST:])
    return Timings(done, int(server.get("cores") or server["ranks"]))
