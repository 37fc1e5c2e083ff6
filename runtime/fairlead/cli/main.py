"""``fairlead VERB``: finds the verb, loads only its module, and turns findings into exit codes.

A verb is the click command of its name in the module of its name; others (the image builder's, which ``fairlead``
never imports) come by the entry point group ``fairlead.verbs``.
"""

from __future__ import annotations

import errno
import importlib
import io
import itertools
import os
import re
import select
import shlex
import signal
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

import click

from fairlead import __version__
from fairlead.base.errors import ExitCode, FairleadError, fail
from fairlead.cli.group import Group

# section -> verb -> one line, which is its command's `short_help`: `--help` loads no verb.
SECTIONS = {
    "Images": {
        "recipe": "Manage recipes: list, show, check, lock, render, import.",
        "build": "Build an image from a recipe's lock.",
        "push": "Push an image to a registry, as layers and as its SIF.",
        "pull": "Pull an image from a registry, as a SIF.",
        "images": "Manage the images in the cache: list, remove, prune.",
        "inspect": "Show what is inside an image.",
        "diff": "Compare two images.",
        "key": "Manage signing keys: new, list, trust, untrust.",
        "sign": "Sign an image or a run record with an offline key.",
        "verify": "Verify the signature of an image or a run record.",
    },
    "Sites": {
        "site": "Manage site profiles: list, show, new, detect, check, …",
        "doctor": "Diagnose this machine, and fix what can be fixed.",
    },
    "Running": {
        "preflight": "Check that an image can run on the host's MPI.",
        "explain": "Explain the plan: which MPI, binds and variables, and why.",
        "run": "Launch a command in an image on the host's MPI, and prove it.",
        "replay": "Repeat a recorded run, and say what differed.",
        "shell": "Open a shell in an image, on the host's MPI.",
        "script": "Write a job script for Slurm, PBS, LSF, Flux or Cobalt.",
        "train": "Train a bundled model data-parallel, and write a report.",
        "tune": "Search for the best parameters of a training.",
        "notebook": "Run notebook cells on ranks, with JupyterLab in front.",
        "data": "Manage data sets in folders and object stores.",
        "bridge": "Send tables of Spark, Dask and pandas to MPI ranks.",
        "serve": "Let clients start declared runs by REST, and watch them.",
        "bench": "Benchmark messages with plain MPI and fairlead.comm.",
        "validate": "Check that this machine is as fast as it should be.",
        "project": "Project small runs to thousands of nodes, with intervals.",
        "report": "Show or compare saved validations.",
    },
}
VERBS = {verb: line for lines in SECTIONS.values() for verb, line in lines.items()}
# Verbs that ``fairlead_build`` brings.
_BUILDERS = frozenset({"recipe", "build", "push", "pull", "diff"})

EPILOG = """\
Exit codes: 0 done, 1 failed, 2 bad usage or input, 121 preflight refused, 122 proof failed,
123 engine or launcher failed, 124 ended by the watchdog, 125 below reference. `run` returns the
exit code of the first rank that failed.
"""


# Extras in the order in which they are proposed where several install a package, and packages that are imported by
# another name than they are installed by.
_EXTRAS = (
    "sign",
    "build",
    "report",
    "data",
    "bridge",
    "tune",
    "notebook",
    "serve",
    "objects",
    "setup",
    "ranks",
    "models",
)
_PACKAGES = {"PIL": "pillow", "elftools": "pyelftools", "yaml": "pyyaml"}


def _missing_package(verb: str, exc: ModuleNotFoundError) -> FairleadError | None:
    """What to install for a package that is not there; None for a module of fairlead or Python, a defect."""
    module = (exc.name or "").split(".")[0]
    if not module or module in sys.stdlib_module_names or module.startswith("fairlead"):
        return None
    package = _PACKAGES.get(module, module)
    if extra := _extra_of(package):
        return fail(
            "tool-missing-extra", verb=verb, package=package, prefix=sys.prefix, extra=extra
        )
    return fail("tool-missing-python-package", verb=verb, package=package, prefix=sys.prefix)


def _extra_of(package: str) -> str:
    """The extra of fairlead that installs a package; empty if none does."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        declared = requires("fairlead") or []
    except PackageNotFoundError:  # a copy that was not installed
        return ""
    extras = set()
    for requirement in declared:
        name = re.match(r"[\w.-]+", requirement)
        if name and re.sub(r"[-_.]+", "-", name[0]).lower() == package.lower().replace("_", "-"):
            extras |= set(re.findall(r"extra == ['\"]([\w-]+)['\"]", requirement))
    return next((extra for extra in _EXTRAS if extra in extras), "")


class Verbs(Group):
    """A click group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        target = f"fairlead.cli.{name}:{name}"
        if name not in VERBS or name in _BUILDERS:
            from importlib.metadata import entry_points

            others = entry_points(group="fairlead.verbs", name=name)
            if not others:
                return None
            target = next(iter(others)).value
        module, _, attribute = target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        command.short_help = VERBS.get(name, command.short_help)
        return command

    def hint(self, ctx: click.Context, name: str) -> str:
        """Verbs that have a verb of this name, such as `site export`; else near names."""
        names = []
        for verb in VERBS:
            with suppress(ImportError):  # it needs a package that is not installed
                group = self.get_command(ctx, verb)
                if isinstance(group, click.Group) and name in group.commands:
                    names.append(f"`{verb} {name}`")
        return f"Did you mean {' or '.join(names)}?" if names else super().hint(ctx, name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section, lines in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl(list(lines.items()))


@click.group(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=EPILOG,
)
@click.version_option(__version__, prog_name="fairlead")
def main() -> None:
    """Build an ML image once, run it on any supercomputer at native speed, and get proof that it
    did.

    \b
    fairlead build tensorflow            build an image from its lock
    fairlead run -n 2 tensorflow -- python3 -m mpi4py.bench helloworld
    fairlead explain tensorflow          show which MPI replaces which, and why
    """
    if os.geteuid() == 0 and not {"-h", "--help"} & set(sys.argv):
        _warn_of_lent_cache()


def _warn_of_lent_cache() -> None:
    from fairlead.base.errors import warning
    from fairlead.base.exposure import lent_to_root
    from fairlead.base.paths import cache_dir

    with suppress(OSError):
        if owner := lent_to_root(cache_dir()):
            from fairlead.cli.screen import print_findings

            print_findings([warning("cache-owner", owner=owner, cache=cache_dir())])


def entry(
    args: list[str] | None = None, command: click.Command = main, name: str = "fairlead"
) -> None:
    """The console script. Ends the process with one of :class:`ExitCode`, or a rank's own.

    Args:
        command: another program's, which ends as fairlead does; ``name`` is what the user types for it.
    """
    argv = sys.argv[1:] if args is None else args
    ours = argv[: argv.index("--")] if "--" in argv else argv
    # SIGTERM and a hang-up unwind like Ctrl-C, so that launches, mounts and partial files are cleaned up.
    signal.signal(signal.SIGTERM, _terminated)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # not under nohup
        signal.signal(signal.SIGHUP, _terminated)
    _standard_streams()
    try:
        status = _invoke(list(argv), command, name)
        sys.stdout.flush()
        sys.exit(status if isinstance(status, int) else ExitCode.DONE)
    except click.exceptions.Exit as exc:
        sys.exit(exc.exit_code)
    except click.exceptions.NoArgsIsHelpError as exc:
        click.echo(exc.format_message())
        sys.exit(ExitCode.USAGE)
    except click.UsageError as exc:
        from fairlead.cli.screen import print_findings_error, usage_error

        usage = usage_error(_placed(exc, ours, command, name))
        print_findings_error(usage, as_json="--json" in ours)
        sys.exit(usage.code)
    except FairleadError as exc:
        from fairlead.cli.screen import print_findings_error

        print_findings_error(exc, as_json="--json" in ours)
        sys.exit(exc.code)
    except (KeyboardInterrupt, click.Abort):
        print("\ninterrupted; run the same command again to go on", file=sys.stderr)
        sys.exit(ExitCode.INTERRUPTED)
    except OSError as exc:
        if isinstance(exc, BrokenPipeError) and _nobody_reads():
            sys.stderr.close()
            sys.exit(ExitCode.DONE)
        sys.exit(_refused_by_system(exc, as_json="--json" in ours))


def _placed(
    exc: click.UsageError, words: Sequence[str], command: click.Command, name: str
) -> click.UsageError:
    """With the verb that it is about: of an option without its argument click does not say whose it is."""
    if exc.ctx is None:
        exc.ctx = click.Context(command, info_name=name)
        for word in words:
            group = exc.ctx.command
            verb = group.get_command(exc.ctx, word) if isinstance(group, click.Group) else None
            if verb is None:
                break
            exc.ctx = click.Context(verb, parent=exc.ctx, info_name=word)
    return exc


def _invoke(argv: list[str], command: click.Command, name: str) -> object:
    """What ``command.main`` does, without its habit of ending any broken pipe with exit code 1."""
    if "_FAIRLEAD_COMPLETE" in os.environ:
        command.main(prog_name=name)
    try:
        with command.make_context(name, argv) as context, _alive(argv, command, name):
            return command.invoke(context)
    except ModuleNotFoundError as exc:  # imports are late: this may be in the middle of a verb
        verb = next((word for word in argv if not word.startswith("-")), "")
        raise _missing_package(f"{name} {verb}".strip(), exc) or exc from exc.__cause__


def _alive(argv: list[str], command: click.Command, name: str) -> AbstractContextManager[None]:
    """Signs of life of a verb whose output nobody sees at once; none of one that is to be quiet."""
    ours = argv[: argv.index("--")] if "--" in argv else argv
    if sys.stderr.isatty() or {"-q", "--quiet"} & {*ours}:
        return nullcontext()
    from fairlead.cli.screen import alive

    words = list(itertools.takewhile(lambda word: not word.startswith("-"), ours))
    groups = isinstance(command, click.Group)
    return alive(" ".join([name, *words[: 1 if groups else 0]]))


def _nobody_reads() -> bool:
    """Whether stdout's reader has gone (`fairlead … | head`), and not some other pipe's."""
    watch = select.poll()
    watch.register(1, select.POLLERR)
    return bool(watch.poll(0))


def _standard_streams() -> None:
    """Opens what the caller has closed (`2>&-`): else the next file would be a program's stderr."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names may be any bytes


def _refused_by_system(exc: OSError, as_json: bool) -> int:
    """The last resort, for what no verb foresaw: a file that is full, gone, forbidden or no file."""
    from fairlead.cli.screen import print_findings_error

    why, file = exc.strerror or str(exc), str(exc.filename2 or exc.filename or "")
    remedy = f"ls -ld {shlex.quote(file)}" if file else "ulimit -a"
    if exc.errno in (errno.EROFS, errno.EACCES):
        remedy = "give a folder that can be written: XDG_CACHE_HOME, -o"
    refused = fail("system", why=why, file=file, remedy=remedy)
    if exc.errno in (errno.ENOSPC, errno.EDQUOT):
        from fairlead.base.paths import cache_dir

        refused = (
            fail("no-space-file", file_parent=Path(file).parent, why=why)
            if file
            else fail("no-space-stdout", cache_dir=cache_dir(), why=why)
        )
    try:
        Path.cwd()
    except OSError as gone:
        refused = fail("working-folder", reason=gone.strerror or str(gone))
    try:
        print_findings_error(refused, as_json)
        sys.stdout.flush()
    except OSError:  # it is stdout that does not work: what is still to be written goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if as_json:
            print_findings_error(refused, as_json=False)
    return refused.code


def _terminated(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    entry()
