"""``python -m benchmarks [NAME…]``: measures every bar, one line each; exit code 1 when one is missed, or cannot be
judged because others use the machine.
"""

from __future__ import annotations

import sys

from benchmarks import discover
from benchmarks.pictures import draw
from benchmarks.result import MOST_BUSY, Compared, busy, judged, keep, machine


def main(names: list[str]) -> int:
    known = discover()
    unknown = [n for n in names if n not in known]
    if unknown:
        print(f"no benchmark {unknown[0]}; known: {', '.join(known)}", file=sys.stderr)
        return 2
    missed = False
    for name in names or [name for name, benchmark in known.items() if benchmark.here()]:
        on = machine()
        result = known[name].measure()
        on["busy_after"] = busy()
        path = keep(result, on)
        draw(known[name])
        for row in result.rows:
            print(_line(row, judged(result, on)))
        if not judged(result, on):
            print(
                f"  no bar is judged: others used {on['busy_before']:.0%} of the processors before it and"
                f" {on['busy_after']:.0%} after it, more than {MOST_BUSY:.0%}; run it on a quiet machine"
            )
        missed = missed or not result.met or not judged(result, on)
        print(f"  kept in {path.relative_to(path.parents[2])}")
    return 1 if missed else 0


def _line(row: Compared, judged_too: bool) -> str:
    unit = f" {row.unit}" if row.kind == "difference" else ""
    verdict = "met" if row.met else "missed"
    if row.bar is None or not judged_too:
        verdict = "reported" if row.bar is None else "not judged"
    limit = "-" if row.bar is None else f"{row.bar:g}{unit}"
    interval = f"[{row.low:.3f}, {row.high:.3f}]"
    return f"{row.name:<66} {row.value:7.3f}{unit} {interval}  bar {limit:<7} {verdict}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
