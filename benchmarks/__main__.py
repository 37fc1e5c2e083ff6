"""``python -m benchmarks [NAME…]``: measures every bar, one line each; exit code 1 when one is missed."""

from __future__ import annotations

import sys

from benchmarks import (
    benchpeers,
    buildcost,
    buildtime,
    comm,
    convergence,
    link,
    overhead,
    peers,
    proof,
    scaling,
    steps,
    swap,
    timeline,
)
from benchmarks.measure import keep, machine

ALL = {
    "help": overhead.measure_help,
    "preflight": overhead.measure_preflight,
    "run-noop": overhead.measure_noop,
    "run-tensorflow": overhead.measure_tensorflow,
    "proof": proof.measure,
    "staging": proof.measure_staging,
    "swap": swap.measure,
    "comm-node": comm.measure,
    "step-efficiency": steps.measure,
    "bench-peers": benchpeers.measure,
    "comm-peers": peers.measure,
    "comm-link": link.measure,
    "comm-scaling": scaling.measure,
    "convergence": convergence.measure,
    "timeline": timeline.measure,
    "build-tensorflow": buildtime.measure,
    "build-cost": buildcost.measure,
}


def main(names: list[str]) -> int:
    unknown = [n for n in names if n not in ALL]
    if unknown:
        print(f"no benchmark {unknown[0]}; known: {', '.join(ALL)}", file=sys.stderr)
        return 2
    missed = False
    for name in names or ALL:
        on = machine()
        result = ALL[name]()
        path = keep(result, on)
        for row in result.rows:
            print(
                _line(row.name, row.value, row.low, row.high, row.bar, row.met, row.kind, row.unit)
            )
        missed = missed or not result.met
        print(f"  kept in {path.relative_to(path.parents[2])}")
    return 1 if missed else 0


def _line(
    name: str,
    value: float,
    low: float,
    high: float,
    bar: float | None,
    met: bool,
    kind: str,
    of: str,
) -> str:
    unit = f" {of}" if kind == "difference" else ""
    verdict = "reported" if bar is None else "met" if met else "missed"
    limit = "-" if bar is None else f"{bar:g}{unit}"
    return f"{name:<66} {value:7.3f}{unit} [{low:.3f}, {high:.3f}]  bar {limit:<7} {verdict}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
