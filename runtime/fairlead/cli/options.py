"""Options that several verbs share, and the request they add up to."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from fairlead.plan import Bind, Request
from fairlead.session import Choices

_GPU = "MPICH_GPU_SUPPORT_ENABLED"
# The plan sets these itself, and adds the user's to its own.
MERGED = frozenset({"LD_LIBRARY_PATH", "LD_PRELOAD"})


@dataclass(frozen=True)
class Planning:
    """What the options of planning say, as given."""

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
    ) -> Request:
        """The request they add up to. What the user's shell sets for Apptainer is kept.

        Args:
            variables: of ``--env``; of these, the request takes :data:`MERGED`.
        """

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
        )


_OPTIONS = (
    click.option(
        "--require-signature",
        is_flag=True,
        help="Refuse an image that no trusted key has signed.",
    ),
    click.option(
        "--engine-arg",
        "engine_args",
        multiple=True,
        metavar="WORD",
        help="An option for the container engine, e.g. --engine-arg=--nv. Repeatable.",
    ),
    click.option(
        "--bind",
        "-B",
        "binds",
        multiple=True,
        metavar="SRC[:DST[:ro]]",
        help="A folder or file of this machine to see in the container. Repeatable.",
    ),
    click.option(
        "--app",
        "apps",
        multiple=True,
        metavar="PATH",
        help="A program of the image that will run; checks then leave out the others. Repeatable.",
    ),
    click.option(
        "--launcher", metavar="PROGRAM", help="The mpiexec to use instead of the MPI's own."
    ),
    click.option(
        "--site",
        metavar="NAME|FILE",
        help="The site profile, instead of the detected one; or the capture of another machine.",
    ),
    click.option(
        "--mpi",
        default="host",
        show_default=True,
        metavar="host|container|PREFIX",
        help="Which MPI runs: this machine's, the image's own, or the one installed in PREFIX.",
    ),
)


def choice_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--mpi --site --launcher --app --bind --engine-arg --require-signature``, which reach
    ``function`` as one :class:`Planning` called ``planning``."""

    @functools.wraps(function)
    def planned(
        *,
        mpi: str,
        site: str | None,
        launcher: str | None,
        require_signature: bool,
        apps: tuple[str, ...],
        binds: tuple[str, ...],
        engine_args: tuple[str, ...],
        **others: Any,
    ) -> Any:
        choices = Choices(mpi, site, launcher, require_signature)
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
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.UsageError(f"--env {pair}: write NAME=VALUE")
        found[name] = value
    return found
