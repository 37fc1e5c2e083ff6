"""Options that several verbs share, the request they add up to, and verbs whose options come as one value."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from fairlead.base.comm_backend import REGISTRY
from fairlead.cli.lazy import LazyOption
from fairlead.engines.registry import kinds as engine_kinds
from fairlead.launch.request import Asked
from fairlead.launchers.model import BINDINGS, Shape
from fairlead.launchers.registry import kinds_of_profiles as launcher_kinds
from fairlead.session.gradients import asked_for
from fairlead.session.model import Choices
from fairlead.swap.model import Bind, Request

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

DEFAULT_SHAPE = Shape()
_MPI4PY = "MPI4PY_LIBMPI"
_GPU = "MPICH_GPU_SUPPORT_ENABLED"
# The plan sets these itself, and adds the user's to its own.
MERGED = frozenset({"LD_LIBRARY_PATH", "LD_PRELOAD"})


def collected(
    into: type[DataclassInstance], name: str = "flags"
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: parameters named like the fields of ``into`` reach the function as one value called ``name``.

    Place it below the click options, next to the function. A field whose parameter is missing takes its default.

    Args:
        into: a frozen dataclass.
    """
    names = tuple(field.name for field in fields(into))

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(**parameters: Any) -> Any:
            values = {n: parameters.pop(n) for n in names if n in parameters}
            return function(**parameters, **{name: into(**values)})

        return wrapper

    return decorate


@dataclass(frozen=True)
class Planning:
    """The options of planning, as given."""

    choices: Choices
    apps: tuple[str, ...]
    binds: tuple[str, ...]
    engine_args: tuple[str, ...]

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

        comm, comm_by = asked_for(self.choices.comm, variables or {}, environ)

        def kept(name: str) -> str:
            if variables and name in variables:
                return variables[name]
            return environ.get(f"APPTAINERENV_{name}", environ.get(f"SINGULARITYENV_{name}", ""))

        return Request(
            mpi="container" if self.choices.mpi == "container" else "host",
            ranks=ranks,
            command=command,
            apps=self.apps,
            binds=tuple(_bind(text) for text in self.binds),
            library_path=kept("LD_LIBRARY_PATH"),
            preload=kept("LD_PRELOAD"),
            engine_args=self.engine_args,
            gpu=(variables or {}).get(_GPU, environ.get(_GPU, "")) == "1",
            shell_python=tuple(
                sorted(n for n in environ if n.startswith("PYTHON") or n == "VIRTUAL_ENV")
            ),
            mpi4py=tuple(
                (name, value)
                for name, value in {**environ, **(variables or {})}.items()
                if name.removeprefix("APPTAINERENV_").removeprefix("SINGULARITYENV_") == _MPI4PY
            ),
            shape=shape,
            comm=comm,
            comm_by=comm_by,
        )


_OPTIONS = (
    click.option(
        "--comm",
        cls=LazyOption,
        names=REGISTRY.names,
        metavar="BACKEND",
        help="Backend for gradients: {names}, or auto.  [default: the site's, or the best]",
    ),
    click.option(
        "--require-signature",
        is_flag=True,
        help="Refuse an image that is not signed by a trusted key.",
    ),
    click.option(
        "--engine-arg",
        "engine_args",
        multiple=True,
        metavar="WORD",
        help="Extra option for the container engine, e.g. --engine-arg=--nv. Repeatable.",
    ),
    click.option(
        "--bind",
        "-B",
        "binds",
        multiple=True,
        metavar="SRC[:DST[:ro]]",
        help="Bind a folder or file of this machine into the container. Repeatable.",
    ),
    click.option(
        "--app",
        "apps",
        multiple=True,
        metavar="PATH",
        help="Check only this program of the image. Repeatable.",
    ),
    click.option(
        "--engine",
        cls=LazyOption,
        names=engine_kinds,
        metavar="KIND",
        help="Container engine: {names}.  [default: the site's first installed one]",
    ),
    click.option(
        "--launcher",
        cls=LazyOption,
        names=launcher_kinds,
        metavar="KIND|PROGRAM",
        help="Launcher, by kind ({names}) or path.  [default: the site's]",
    ),
    click.option(
        "--site",
        metavar="NAME|FILE",
        help="Use this site profile, or this capture of another machine, instead of the detected one.",
    ),
    click.option(
        "--mpi",
        default="host",
        show_default=True,
        metavar="host|container|PREFIX",
        help="MPI to run on: this machine's, the image's own, or the one installed in PREFIX.",
    ),
)


_PLACEMENT = (
    click.option(
        "--launcher-arg",
        "extra",
        multiple=True,
        metavar="WORD",
        help="Extra option for the launcher, e.g. --launcher-arg=--exclusive. Repeatable.",
    ),
    click.option(
        "--partition", default="", metavar="NAME", help="Partition or queue of a new job."
    ),
    click.option("--account", default="", metavar="NAME", help="Account to charge for a new job."),
    click.option(
        "--time", default="", metavar="H:MM:SS", help="Time limit of a new job; also 90m or 2h."
    ),
    click.option(
        "--hosts", default="", metavar="HOST,HOST", help="Nodes to use, by name, for mpiexec."
    ),
    click.option(
        "--bind-to", "bind", type=click.Choice(BINDINGS), help="Bind each rank to this unit."
    ),
    click.option("--gpus-per-rank", "gpus", type=click.IntRange(1), help="GPUs per rank."),
    click.option("--cores-per-rank", "cores", type=click.IntRange(1), help="Cores per rank."),
    click.option("--ranks-per-node", "per_node", type=click.IntRange(1), help="Ranks per node."),
    click.option("-N", "--nodes", type=click.IntRange(1), help="Nodes to use."),
)
_RANKS = click.option(
    "-n",
    "--ranks",
    type=click.IntRange(1),
    help="Ranks to start.  [default: one per node, or 1]",
)


def placement_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """``-n -N --ranks-per-node --cores-per-rank --gpus-per-rank --bind-to --hosts --time --account
    --partition --launcher-arg``, which reach ``function`` as one :class:`Asked` called ``asked``."""

    @functools.wraps(function)
    def placed(*, ranks: int | None, asked: Asked, **others: Any) -> Any:
        return function(asked=replace(asked, ranks=ranks), **others)

    return nodes_options(_RANKS(placed))


@dataclass(frozen=True)
class _Placement:
    """The options of :data:`_PLACEMENT`, as given."""

    nodes: int | None
    per_node: int | None
    cores: int | None
    gpus: int | None
    bind: str | None
    hosts: str
    time: str
    account: str
    partition: str
    extra: tuple[str, ...]

    def asked(self) -> Asked:
        return Asked(
            nodes=self.nodes,
            per_node=self.per_node,
            cores=self.cores,
            gpus=self.gpus,
            bind=self.bind or "",
            hosts=tuple(filter(None, self.hosts.split(","))),
            time=self.time,
            account=self.account,
            partition=self.partition,
            extra=self.extra,
        )


def nodes_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """:func:`placement_options` without ``-n``, for a verb that has its own."""

    @collected(_Placement, "placement")
    @functools.wraps(function)
    def placed(*, placement: _Placement, **others: Any) -> Any:
        return function(asked=placement.asked(), **others)

    for option in _PLACEMENT:
        placed = option(placed)
    return placed


def choice_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--mpi --site --launcher --engine --app --bind --engine-arg --comm --require-signature``, which reach
    ``function`` as one :class:`Planning` called ``planning``."""

    @collected(Choices, "choices")
    @functools.wraps(function)
    def planned(
        *,
        choices: Choices,
        apps: tuple[str, ...],
        binds: tuple[str, ...],
        engine_args: tuple[str, ...],
        **others: Any,
    ) -> Any:
        asked_for(choices.comm, {}, {})  # refuses an unknown name before any other work
        return function(planning=Planning(choices, apps, binds, engine_args), **others)

    for option in _OPTIONS:
        planned = option(planned)
    return planned


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


def container_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--env`` and ``--workdir``."""
    function = click.option(
        "--workdir", default="", metavar="DIR", help="Working directory in the container."
    )(function)
    return click.option(
        "--env",
        "env",
        multiple=True,
        metavar="NAME=VALUE",
        help="Set a variable in the container. Repeatable.",
    )(function)


def image_option(more: str = ".") -> Callable[[Any], Any]:
    """``--image`` of the verbs that choose one; ``more`` ends its help."""
    return click.option(
        "--image",
        default="tensorflow",
        show_default=True,
        help=f"Image, by recipe name or path{more}",
    )


def output_option(default: str) -> Callable[[Any], Any]:
    """``-o``: the folder for a report."""
    return click.option(
        "-o",
        "--output",
        default=default,
        show_default=True,
        help="Folder for the report.",
        type=click.Path(file_okay=False, path_type=Path),
    )


watchdog_option = click.option(
    "--watchdog",
    type=click.FloatRange(1),
    metavar="SECONDS",
    help="Time limit until every rank has reported.  [default: the site's, 30]",
)


def is_given(context: click.Context, name: str) -> bool:
    """Whether the value comes from the command line, not from a default."""
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def given(context: click.Context, skipped: tuple[str, ...] = ()) -> Iterator[str]:
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
        for word in map(str, value if parameter.multiple else (value,)):
            yield from [f"{flag}={word}"] if word.startswith("-") else [flag, word]
