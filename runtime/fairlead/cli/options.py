"""Options that several verbs share, and the request that they add up to."""

from __future__ import annotations

import os
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from fairlead.base.comm_backend import REGISTRY
from fairlead.base.suggest import suggest
from fairlead.cli.declare import SECONDS, SITE, argument, option
from fairlead.elf.carried.registry import LIBRARIES
from fairlead.engines.registry import kinds as engine_kinds
from fairlead.launch.request import Asked
from fairlead.launchers.model import BINDINGS, Shape
from fairlead.launchers.registry import kinds_of_users as launcher_kinds
from fairlead.rendezvous.registry import modes as rendezvous_modes
from fairlead.schedulers.script import INDEX
from fairlead.session.gradients import asked_for
from fairlead.session.model import Choices
from fairlead.session.restarts import Restarts
from fairlead.swap.model import Bind, Request
from fairlead.swap.shell_folders import folders
from fairlead.swap.shell_mpi import places
from fairlead.swap.shell_python import sort

DEFAULT_SHAPE = Shape()
BACKENDS = ("tensorflow", "torch")  # of Keras
_MPI4PY = "MPI4PY_LIBMPI"
_GPU = "MPICH_GPU_SUPPORT_ENABLED"
_NCCL = ("NCCL_", "RCCL_", "OFI_NCCL_", "FI_")
_PLACES = ("FI_PROVIDER_PATH",)  # a folder of this machine; the plan has that of the container
# The plan sets these itself, and adds the user's to its own.
MERGED = frozenset({"LD_LIBRARY_PATH", "LD_PRELOAD"})
# Where a container looks for programs and modules; Apptainer puts the last two around PATH.
SEARCHED = ("PATH", "PYTHONPATH", "PREPEND_PATH", "APPEND_PATH")


def _mode(context: click.Context, option: click.Parameter, mode: str) -> str:
    if mode not in rendezvous_modes():
        raise click.BadParameter(f"{mode}: no such mode. {suggest(mode, rendezvous_modes())}")
    return mode


def _carried(
    context: click.Context, option: click.Parameter, names: tuple[str, ...]
) -> tuple[str, ...]:
    for name in names:
        if name not in (*LIBRARIES.names(), "none"):
            near = suggest(name, (*LIBRARIES.names(), "none"))
            raise click.BadParameter(f"{name}: no such library. {near}")
    return names


def _plugin(context: click.Context, option: click.Parameter, nccl: str) -> str:
    if nccl in ("auto", "host", "image"):
        return nccl
    if "/" not in nccl:
        near = suggest(nccl, ("auto", "host", "image"))
        raise click.BadParameter(f"{nccl}: auto, host, image, or the path of a plugin. {near}")
    path = Path(nccl).absolute()
    if not path.exists():
        raise click.BadParameter(f"{nccl}: there is no such file or folder")
    return str(path)


ENV = option("--env NAME=VALUE", "Set a variable in the container. Repeatable.")
WORKDIR = option("--workdir DIR", "Working directory in the container.")
WATCHDOG = option(
    "--watchdog SECONDS",
    "Time limit until every rank has reported.  [default: the site's, 30]",
    type=SECONDS,
)
SKIP_DAMAGED = option(
    "--skip-damaged", "Skip and count files that cannot be read; all files are read first."
)
EXTERNAL_DATA = option(
    "--external-data", "Let HDF5 files have values in other files, by links or as virtual datasets."
)
TRAIN_SAMPLES = option(
    "--train-samples --train-events N",
    "Of a model: samples to generate and train on.  [default: what it needs]",
    type=click.IntRange(100),
)
EPOCHS = option("--epochs", "Of a model: passes over the samples.  [default: the recipe's]")
BACKEND = option(
    "--backend", "Of a model: Keras backend.", default="tensorflow", type=click.Choice(BACKENDS)
)
TIMELINE = option(
    "--timeline FILE", "Write a timeline of every rank for Perfetto; FILE.gz is compressed."
)
RENDEZVOUS = option(
    "--rendezvous MODE",
    "Frameworks whose RANK, MASTER_ADDR and the like the ranks get: {names}.",
    default="auto",
    names=rendezvous_modes,
    callback=_mode,
)
LABEL = option("--label", "Print the rank before each line of its output.")
OUTPUT_DIR = option(
    "--output-dir DIR", "Write each rank's output to DIR/rank.N.log, and not to the terminal."
)
COMMAND = argument(nargs=-1, required=True, type=click.UNPROCESSED)


def image_option(more: str = ".") -> Any:
    """``--image`` of the verbs that choose one; ``more`` ends its help."""
    return option("--image", f"Image, by recipe name or path{more}", default="tensorflow")


@dataclass(frozen=True, kw_only=True)
class Planning:
    """The options of planning, as given."""

    mpi: str = option(
        "--mpi host|container|PREFIX",
        "MPI to run on: this machine's, the image's own, or the one installed in PREFIX.",
        default="host",
    )
    site: str | None = SITE
    launcher: str | None = option(
        "--launcher KIND|PROGRAM",
        "Launcher, by kind ({names}) or path.  [default: the site's]",
        names=launcher_kinds,
    )
    engine: str | None = option(
        "--engine KIND",
        "Container engine: {names}.  [default: the site's first installed one]",
        names=engine_kinds,
    )
    apps: tuple[str, ...] = option(
        "--app PATH", "Check only this program of the image, by path or name. Repeatable."
    )
    binds: tuple[str, ...] = option(
        "--bind -B SRC[:DST[:ro]]",
        "Bind a folder or file of this machine into the container. Repeatable.",
    )
    engine_args: tuple[str, ...] = option(
        "--engine-arg WORD",
        "Extra option for the container engine, e.g. --engine-arg=--nv. Repeatable.",
    )
    require_signature: bool = option(
        "--require-signature", "Refuse an image that is not signed by a trusted key."
    )
    unpack: bool = option(
        "--unpack",
        "Unpack the image into a folder of the cache, once, and run from there: imports are faster.",
    )
    container_per_rank: bool = option(
        "--container-per-rank",
        "Start a container for each rank, also where the ranks of a node can share one.",
    )
    comm: str | None = option(
        "--comm BACKEND",
        "Backend for gradients: {names}, or auto.  [default: the site's, or the best]",
        names=REGISTRY.names,
    )

    carry: tuple[str, ...] = option(
        "--carry LIBRARY",
        "With --mpi container: give the image's MPI this machine's {names}, or none. Repeatable.  [default: the site's]",
        names=LIBRARIES.names,
        callback=_carried,
    )
    nccl: str = option(
        "--nccl auto|host|image|FILE",
        "Network plugin of NCCL and RCCL: the host's, none but the image's own, or this file; auto: the host's, if "
        "ranks get GPUs.",
        default="auto",
        callback=_plugin,
    )

    def __post_init__(self) -> None:
        asked_for(self.comm, {}, {})  # refuses an unknown name before any other work
        if self.carry and self.mpi != "container":
            raise click.UsageError(
                "--carry belongs to --mpi container: the host's MPI brings its own"
            )

    @property
    def choices(self) -> Choices:
        """What the plan is made by."""
        return Choices(
            self.mpi, self.site, self.launcher, self.engine, self.require_signature, self.comm, self.unpack,
            self.container_per_rank,
        )  # fmt: skip

    def request(
        self,
        ranks: int,
        command: tuple[str, ...] = (),
        variables: Mapping[str, str] | None = None,
        environ: Mapping[str, str] = os.environ,
        shape: Shape = DEFAULT_SHAPE,
    ) -> Request:
        """The request that the options add up to. It keeps what the user's shell sets for Apptainer.

        Args:
            variables: of ``--env``; of these, the request takes :data:`MERGED`.
            shape: where the ranks go.
        """
        variables = variables or {}
        comm, comm_by = asked_for(self.comm, variables, environ)

        def kept(name: str) -> str:
            of_engine = environ.get(f"SINGULARITYENV_{name}", "")
            return variables.get(name, environ.get(f"APPTAINERENV_{name}", of_engine))

        everything = {**environ, **variables}
        mpi4py = [
            (name, value)
            for name, value in everything.items()
            if name.removeprefix("APPTAINERENV_").removeprefix("SINGULARITYENV_") == _MPI4PY
        ]
        python = sort(environ)
        return Request(
            mpi="container" if self.mpi == "container" else "host",
            ranks=ranks,
            command=command,
            apps=self.apps,
            binds=tuple(map(_bind, self.binds)),
            library_path=kept("LD_LIBRARY_PATH"),
            preload=kept("LD_PRELOAD"),
            searched={name: value for name in SEARCHED if (value := kept(name))},
            engine_args=self.engine_args,
            gpu=everything.get(_GPU) == "1",
            shell_python=python.removed,
            shell_mpi=places(environ),
            folders=folders(environ, environ.get("PWD", "")),
            python_env=tuple(p for p in python.passed if p[0] not in variables),
            mpi4py=tuple(mpi4py),
            shape=shape,
            comm=comm,
            comm_by=comm_by,
            carry=self.carry,
            nccl=self.nccl,
            nccl_env=_of_nccl(environ, variables),
        )


def _of_nccl(environ: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """The user's variables of NCCL, RCCL and libfabric: those of ``--env`` precede the shell's for the container."""
    values = dict(environ)
    for prefix in ("SINGULARITYENV_", "APPTAINERENV_"):
        of_engine = ((name, value) for name, value in environ.items() if name.startswith(prefix))
        values |= {name.removeprefix(prefix): value for name, value in of_engine}
    values |= variables
    return {n: v for n, v in values.items() if n.startswith(_NCCL) and n not in _PLACES}


@dataclass(frozen=True, kw_only=True)
class Nodes(Asked):
    """Where the ranks go, by options, for a verb with a ``-n`` of its own."""

    nodes: int | None = option("-N --nodes", "Nodes to use.")
    per_node: int | None = option("--ranks-per-node", "Ranks per node.")
    cores: int | None = option("--cores-per-rank", "Cores per rank.")
    gpus: int | None = option("--gpus-per-rank", "GPUs per rank.")
    bind: str = option(
        "--bind-to",
        "Bind each rank to this unit.",
        type=click.Choice(BINDINGS),
        callback=lambda context, option, unit: unit or "",
    )
    hosts: tuple[str, ...] = option(
        "--hosts HOST,HOST",
        "Nodes to use, by name, for mpiexec.",
        default="",
        multiple=False,
        callback=lambda context, option, names: tuple(filter(None, names.split(","))),
    )
    time: str = option("--time H:MM:SS", "Time limit of a new job; also 90m or 2h.")
    account: str = option("--account NAME", "Account to charge for a new job.")
    partition: str = option("--partition NAME", "Partition or queue of a new job.")
    extra: tuple[str, ...] = option(
        "--launcher-arg WORD",
        "Extra option for the launcher, e.g. --launcher-arg=--exclusive. Repeatable.",
    )


@dataclass(frozen=True, kw_only=True)
class Placement(Nodes):
    """How many ranks there are, and where they go."""

    ranks: int | None = option("-n -np --ranks", "Ranks to start.  [default: one per node, or 1]")


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """What becomes of a launch that fails."""

    restarts: int = option(
        "--restarts N",
        "Launch again after a failure, up to N times, without nodes that are lost.",
        type=click.IntRange(0),
        default=0,
    )
    exclude_failed: bool = option(
        "--exclude-failed",
        "Restart without the node of the rank that failed first, if others are left.",
    )
    spares: int = option(
        "--spares K",
        "Nodes more than the ranks need, for restarts.",
        type=click.IntRange(0),
        default=0,
    )

    check_nodes: bool = option(
        "--check-nodes",
        "First compare the nodes' processors and links, and leave out what is slow.",
    )

    def words(self) -> list[str]:
        """The options, as given."""
        counted = (("--restarts", self.restarts), ("--spares", self.spares))
        words = [word for flag, n in counted if n for word in (flag, str(n))]
        words += ["--exclude-failed"] * self.exclude_failed
        return [*words, *["--check-nodes"] * self.check_nodes]

    def policy(self, requeue_s: float | None) -> Restarts:
        """As the launches are to have it.

        Raises:
            click.UsageError: what only restarts use is given without them.
        """
        if not self.restarts and self.exclude_failed:
            raise click.UsageError("--exclude-failed is for --restarts N")
        if not (self.restarts or self.check_nodes) and self.spares:
            raise click.UsageError("--spares is for --restarts N and --check-nodes")
        return Restarts(self.restarts, self.exclude_failed, self.spares, requeue_s or 0.0)


REQUEUE = option(
    "--requeue SECONDS",
    "Requeue the job when its ranks end after SIGUSR1, which comes SECONDS before the job's end.",
    type=SECONDS,
)


def _bind(text: str) -> Bind:
    source, _, rest = text.partition(":")
    target, _, mode = rest.partition(":")
    if not source or not (target or "/").startswith("/"):
        raise click.UsageError(
            f"--bind {text}: write SRC[:DST[:ro]], with a DST that begins with /"
        )
    path = Path(source).expanduser().absolute()
    if not path.exists():
        raise click.UsageError(f"--bind {text}: {path} does not exist on this machine")
    if mode not in ("", "ro", "rw"):
        raise click.UsageError(f"--bind {text}: the last word is `ro` or `rw`, not `{mode}`")
    return Bind(str(path), target or str(path), mode == "ro")


def variables(pairs: tuple[str, ...]) -> dict[str, str]:
    """``--env NAME=VALUE`` pairs."""
    values = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.UsageError(f"--env {pair}: write NAME=VALUE")
        values[name] = value
    return values


def is_given(context: click.Context, name: str) -> bool:
    """Whether the value comes from the command line, not from a default."""
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def given(context: click.Context, skipped: Container[str] = ()) -> Iterator[str]:
    """The options on this command line, as words."""
    for parameter in context.command.params:
        name = str(parameter.name)
        value = context.params[name]
        if (
            name in skipped
            or not isinstance(parameter, click.Option)
            or not is_given(context, name)
        ):
            continue
        flag = max(parameter.opts, key=len)
        if parameter.is_flag:
            yield flag
            continue
        if not parameter.multiple:
            value = (",".join(value) if isinstance(value, tuple) else value,)
        for word in map(str, value):
            yield from [f"{flag}={word}"] if word.startswith("-") else [flag, word]


_KEPT = ("XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")
_OWN = (
    "FAIRLEAD_PROOF", "FAIRLEAD_PROOF_LIBS", "FAIRLEAD_RUN_ID", "FAIRLEAD_RUN_FOLDER", "FAIRLEAD_ALLOCATED",
    "FAIRLEAD_TUNE_JOB", "FAIRLEAD_TUNE_TRIAL", INDEX,
)  # fmt: skip


def passed_on(environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The variables that change what fairlead does; not every scheduler brings the shell's into a job."""
    ours = (n for n in sorted(environ) if n.startswith("FAIRLEAD_") and n not in _OWN)
    return tuple((n, environ[n]) for n in sorted((*ours, *(k for k in _KEPT if k in environ))))
