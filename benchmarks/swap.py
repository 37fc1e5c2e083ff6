"""The swapped MPI in a container against the same MPI native: ping-pong and allreduce, 8 B to 16 MB.

A round's value is the tenth percentile of its repetitions (``mpi_sweep.c`` says why); what is
compared is the medians over rounds.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from benchmarks.measure import Compared, Result, alternate, compare
from fairlead import plan as planning
from fairlead import stage
from fairlead.engine.apptainer import Engine
from fairlead.launch import CommandLine, command_line
from fairlead.paths import cache_dir
from fairlead.plan import Bind, Plan, Request
from fairlead.session import Choices, prepare

IMAGE, ROUNDS, BAR = "mpi-base", 15, 1.02
_INSIDE = "/tmp/fairlead-bench"


def measure() -> Result:
    """Three sides: native; swapped, ranks in one namespace or none; swapped, a namespace a rank."""
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as folder:
        plain = prepare(IMAGE, Choices(), Request(ranks=2)).plan
        stage.ensure(plain, cache_dir())
        program = _compile(Path(folder), plain)
        bind = Bind(folder, _INSIDE)
        sides: dict[str, Callable[[], dict[tuple[str, int], float]]] = {
            "native": lambda: _run(_native(plain, program)),
            "swapped": lambda: _run(_pinned(_swapped(plain, bind))),
        }
        if not plain.engine.userns_per_rank:
            apart = _with_namespaces(plain)
            sides["namespaces"] = lambda: _run(_pinned(_swapped(apart, bind)))
        for side in sides.values():
            side()  # warm
        found = alternate(ROUNDS, sides)
    # The bar holds where ranks share a user namespace or have none; an ordinary user's do not.
    shared = not plain.engine.userns_per_rank
    apart_label = ", a namespace a rank"
    rows: list[Compared] = []
    for operation, size in found["native"][0]:
        native = [times[operation, size] for times in found["native"]]
        for side, label, bar in (
            ("swapped", "", BAR) if shared else ("swapped", apart_label, None),
            ("namespaces", apart_label, None),
        ):
            if side in found:
                ours = [times[operation, size] for times in found[side]]
                rows.append(compare(f"{operation} {size} B{label}", ours, native, bar))
    return Result(
        "swap",
        f"{plain.planned_title} swapped into {IMAGE}, 2 ranks, pinned; medians over {ROUNDS} rounds of "
        "each round's tenth percentile",
        "the same MPI native",
        tuple(rows),
        {
            "mpi": plain.planned_title,
            "engine": plain.engine.kind,
            "options": " ".join(plain.engine.options),
        },
    )


def _compile(folder: Path, plan: Plan) -> Path:
    assert plan.host is not None
    program = folder / "mpi_sweep"
    prefix, library = Path(plan.host.prefix), Path(plan.host.library.path)
    subprocess.run(
        [
            "gcc",
            "-O2",
            "-o",
            str(program),
            str(Path(__file__).with_name("mpi_sweep.c")),
            f"-I{prefix / 'include'}",
            str(library),
            "-Wl,--allow-shlib-undefined",
        ],
        check=True,
    )
    return program


def _native(plan: Plan, program: Path) -> CommandLine:
    assert plan.host is not None
    folder = str(Path(plan.host.library.path).parent)
    argv = (plan.launcher.path, "-n", "2", str(program))
    return _pinned(CommandLine(argv, {"LD_LIBRARY_PATH": folder}))


def _swapped(plan: Plan, bind: Bind) -> CommandLine:
    return command_line(plan, (f"{_INSIDE}/mpi_sweep",), 2, binds=(bind,))


def _pinned(line: CommandLine) -> CommandLine:
    return replace(line, argv=(line.argv[0], "-bind-to", "user:0,1", *line.argv[1:]))


def _with_namespaces(plan: Plan) -> Plan:
    """The plan of an ordinary user: a user namespace for each rank."""
    engine = Engine("apptainer", plan.engine.path, True, ("--userns",), ())
    return planning.plan(
        plan.image,
        plan.facts,
        plan.host,
        plan.launcher,
        plan.site,
        engine,
        plan.request,
        cache_dir(),
    )


def _run(line: CommandLine) -> dict[tuple[str, int], float]:
    done = subprocess.run(
        line.argv,
        env=line.environment(os.environ),
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    rows = (text.split() for text in done.stdout.splitlines())
    return {(row[0], int(row[1])): float(row[2]) for row in rows if len(row) == 3}
