"""The base class of schedulers, the job that they run, and the allocation that they grant."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from fairlead.base.errors import FairleadError, fail
from fairlead.base.process import Ran
from fairlead.base.system import View
from fairlead.base.timeboxed import version
from fairlead.launchers.model import Shape

# For ``spawner_lines``: hours, minutes and seconds of the form's H:MM:SS or MM:SS, as ``t``.
SPLIT_RUNTIME = """{% set t = ("0:" ~ (runtime or "1:00:00")).split(":")[-3:] -%}"""
_NAME = re.compile(r"[\w.@+:/-]+")


@dataclass(frozen=True)
class Array:
    """Several jobs from one script, distinguished by an index.

    Attributes:
        limit: how many may run at once, at least 1; None: all.
    """

    first: int
    last: int
    step: int = 1
    limit: int | None = None

    def words(self, form: str = "{}") -> str:
        """``FIRST-LAST:STEP`` in ``form``, and ``%LIMIT``; a step of 1 and no limit are left out."""
        step = f":{self.step}" if self.step > 1 else ""
        limit = f"%{self.limit}" if self.limit else ""
        return form.format(f"{self.first}-{self.last}{step}") + limit


@dataclass(frozen=True)
class Job:
    """A job script, independent of the scheduler.

    Attributes:
        shape: ranks, nodes, time, account and partition.
        log: file for its output; empty: the scheduler's default.
        requeue: run it again if a node fails.
        options: the user's further options for the scheduler, each with its value.
        modules: environment modules to load; ``-NAME`` unloads.
        exports: variables of this shell that the job needs, with their values.
        launcher: kind of the launcher that starts the ranks; LSF's options depend on it.
        body: the line that runs the ranks.
        written_by: the command that wrote it.
        leading: the site's options for the scheduler, before all others.
        warn_s: seconds before its time limit at which it gets SIGUSR1; 0 for no signal.
        outlives_nodes: it is to go on when one of its nodes fails.
    """

    shape: Shape
    body: str
    name: str = ""
    log: str = ""
    array: Array | None = None
    requeue: bool = False
    options: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    exports: tuple[tuple[str, str], ...] = ()
    launcher: str = ""
    written_by: str = ""
    leading: tuple[str, ...] = ()
    warn_s: int = 0
    outlives_nodes: bool = False


@dataclass(frozen=True)
class Allocation:
    """The resources that this shell may use; 0 or empty if the scheduler does not report them.

    Attributes:
        scheduler: its kind, as in a site profile.
        job: its identifier.
        nodes: number of nodes.
        hosts: names of the nodes.
        slots: cores, or slots for ranks, of all nodes together.
        by: the variable that identifies the job.
    """

    scheduler: str
    job: str
    nodes: int = 0
    hosts: tuple[str, ...] = ()
    slots: int = 0
    by: str = ""

    @property
    def title(self) -> str:
        """In words."""
        size = [f"{self.nodes} nodes"] if self.nodes else []
        size += [f"{self.slots} slots"] if self.slots else []
        return f"{self.scheduler} job {self.job}" + (f" ({', '.join(size)})" if size else "")


class Scheduler:
    """A scheduler: how it is recognised, what it gives a job, and the grammar of its job scripts.

    Subclass it in a module of this package, or of another distribution with an entry point of the group
    ``fairlead.schedulers``; the module's ``SCHEDULER`` is an instance. Only ``kind``, ``title`` and
    ``programs`` have no default.

    Attributes:
        kind: its name in site profiles.
        title: its product name.
        programs: any of which on PATH shows it.
        variables: any of which is set only where it is in use.
        config_files: patterns of files that are there only where it is in use; ``{prefix}`` stands for the
            installation prefix of its program.
        version_command: prints its version.
        version_after: the text that precedes the version in its output.
        job_variable: set in each of its jobs.
        job_variable_is_own: no other software sets that variable.
        nests: it can run inside another scheduler's job, whose allocation comes first.
        sentinel: how a directive begins; empty where fairlead writes no job scripts for it.
        submit: the command line before the script's path.
        index: the variable that holds an array job's index; empty where there are no arrays.
        folder: the variable that holds the submission folder, where a job starts in another.
        host: the variable that holds the host that a job was submitted from.
        launcher: the kind of launcher that starts ranks in its jobs where the profile names none.
        interactive: how to run a command on a compute node, for messages.
        interactive_program: runs one command in a new job and keeps its exit code, by :meth:`allocate`;
            empty where none can.
        reframe: ReFrame's name of it; empty where ReFrame has none.
        requeue: the command that queues a job again, before the job's name; empty where there is none.
        shown: first words of that program's other commands that a rank may ask for.
        outlives_nodes: the option by which a job goes on without a node that fails.
        cancel: the command that ends a job, before its identifier; empty where :meth:`queued` cannot name one.
        spawner: batchspawner's class for it; empty where fairlead exports no JupyterHub.
        spawner_settings: settings of that class, by name, where batchspawner has no class for this scheduler alone.
        spawner_lines: lines of that class's job script, before the server's: Jinja, with ``nodes``, ``ranks_per_node``,
            ``runtime``, ``account``, ``partition`` of the form, and batchspawner's own.
    """

    kind: str
    title: str
    programs: tuple[str, ...]
    variables: tuple[str, ...] = ()
    config_files: tuple[str, ...] = ()
    version_command: tuple[str, ...] = ()
    version_after: str = ""
    job_variable: str = ""
    job_variable_is_own: bool = True
    nests: bool = False
    sentinel: str = ""
    submit: str = ""
    index: str = ""
    folder: str = ""
    host: str = ""
    launcher: str = ""
    interactive: str = ""
    interactive_program: str = ""
    reframe: str = ""
    requeue: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    outlives_nodes: str = ""
    cancel: tuple[str, ...] = ()
    spawner: str = ""
    spawner_settings: Mapping[str, str] = MappingProxyType({})
    spawner_lines: tuple[str, ...] = ()

    def configured(self, view: View) -> str:
        """What shows that it allocates this machine's nodes; empty if only its programs are installed, or nothing.

        Of one that declares neither ``variables`` nor ``config_files``, a program on PATH. Starts no program.
        """
        job = (self.job_variable,) if self.job_variable_is_own and self.job_variable else ()
        for name in (*job, *self.variables):
            if view.environ.get(name):
                return f"${name}"
        paths = [view.real(path) for path in map(view.which, self.programs) if path]
        if not (self.variables or self.config_files):
            return paths[0] if paths else ""
        prefixes = dict.fromkeys(path.rpartition("/")[0].rpartition("/")[0] for path in paths)
        for pattern in self.config_files:
            for prefix in prefixes if "{prefix}" in pattern else ("",):
                if matches := view.matching(pattern.format(prefix=prefix)):
                    return matches[0]
        return ""

    def directives(self, job: Job) -> tuple[str, ...]:
        """The options of a script, without the sentinel; a pure function.

        Raises:
            FairleadError: exit code 2; the scheduler has no option for something that the job needs.
        """
        raise NotImplementedError

    def server_lines(self, launcher: str) -> tuple[str, ...]:
        """``spawner_lines`` for jobs whose ranks ``launcher``, a kind, starts."""
        return self.spawner_lines

    def submit_line(self, path: str) -> str:
        """The command that submits the script at ``path``."""
        return f"{self.submit} {shlex.quote(path)}"

    def allocation(self, environ: Mapping[str, str]) -> Allocation | None:
        """The allocation of this shell's job; None outside a job. Reads at most one small file."""
        return None

    def names_of_job(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        """The names by which a program may call this shell's job."""
        return tuple(filter(None, (environ.get(self.job_variable, ""),)))

    def down(self, hosts: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
        """Those of a job's nodes that the scheduler counts as failed, each with its word for it. May start a program."""
        return {}

    def guard(
        self, allocation: Allocation, environ: Mapping[str, str]
    ) -> tuple[tuple[str, ...], dict[str, str]]:
        """A command that runs on another node of a job than this one, and ends or requeues the job if this one fails, and
        its environment; no words where the scheduler does that itself, or this is not a node of the job."""
        return (), {}

    def waits(self, job: str, environ: Mapping[str, str]) -> bool:
        """Whether a job waits to be started; False where that cannot be asked. May start a program."""
        return False

    def queued(self, environ: Mapping[str, str]) -> dict[str, str] | None:
        """The identifiers of this user's jobs that wait or run, by name; None where that cannot be asked. Starts a program."""
        return None

    def allocates(self, environ: Mapping[str, str]) -> str:
        """The path of ``interactive_program``; empty if it is not on PATH."""
        program = self.interactive_program
        return (program and shutil.which(program, path=environ.get("PATH", ""))) or ""

    def allocate(
        self, program: str, shape: Shape, options: Sequence[str], argv: Sequence[str], quiet: bool
    ) -> tuple[str, ...]:
        """The command line that runs ``argv`` in a new job of ``shape``."""
        raise NotImplementedError

    def is_present(self, view: View, version_text: str, answered: Ran | None) -> bool:
        """Whether programs or variables with this scheduler's names really belong to it."""
        return True

    def version(self, text: str) -> str:
        """Its version, from the output of ``version_command``."""
        return version(text, self.version_after) or version(text)

    def questions(self, view: View) -> dict[str, tuple[str, ...]]:
        """Further commands that :meth:`cluster` needs, by key."""
        return {}

    def cluster(self, view: View, answers: Mapping[str, Ran]) -> tuple[str, str]:
        """The cluster's name and its source; both empty if unknown."""
        return "", ""

    def cluster_names(self, view: View) -> dict[str, str]:
        """The cluster's names according to variables and files only, each with its source."""
        return {}


def first_words(path: str) -> list[str]:
    """The first word of each line of a file; none where it cannot be read."""
    with suppress(OSError):
        return [
            line.split()[0] for line in Path(path).read_text("utf-8").splitlines() if line.strip()
        ]
    return []


def array(text: str) -> Array:
    """``0-9``, ``1-99:2`` or ``1-100%8``.

    Raises:
        FairleadError: exit code 2.
    """
    match = re.fullmatch(r"(\d{1,9})-(\d{1,9})(?::(\d{1,9}))?(?:%(\d{1,9}))?", text)
    if match is None:
        raise fail("script-array", text=text)
    first, last, step, limit = (None if part is None else int(part) for part in match.groups())
    assert first is not None and last is not None
    if last < first or step == 0 or limit == 0:
        raise fail("script-array", text=text)
    return Array(first, last, step or 1, limit)


def name(option: str, text: str) -> str:
    """A name that every scheduler accepts without quotes.

    Raises:
        FairleadError: exit code 2; it contains a blank, a quote or another special character.
    """
    if text and not _NAME.fullmatch(text):
        raise fail("script-directive-name", option=option, text=shlex.quote(text))
    return text


def lacks(kind: str, what: str, remedy: str) -> FairleadError:
    """The error for something that a scheduler has no option for."""
    return fail("script-no-directive", kind=kind, what=what, remedy=remedy)


def leading(sites: Iterable[str], given: Iterable[str], partition: str) -> tuple[str, ...]:
    """The site's options, without those that the user sets.

    >>> leading(("--partition=standard", "--qos=standard"), ("--qos=short",), "highmem")
    ()
    >>> leading(("-l filesystems=home",), ("-l place=pack",), "")
    ('-l filesystems=home',)
    """
    own = {_called(option) for option in given}
    if partition:
        own |= {"--partition", "-p", "--queue"}
    return tuple(option for option in sites if _called(option) not in own)


def _called(option: str) -> str:
    """``--qos=x`` as ``--qos``, ``-C gpu`` as ``-C``; ``-l`` and ``-R`` include what they request."""
    parts = re.split(r"[= \[]", option)
    return " ".join(parts[: 2 if parts[0] in ("-l", "-R") else 1])


def options(words: Iterable[str]) -> tuple[str, ...]:
    """Groups a list of words into options, each followed by its value.

    >>> options(("-C", "haswell", "--exclusive", "-l filesystems=home"))
    ('-C haswell', '--exclusive', '-l filesystems=home')
    """
    grouped: list[str] = []
    for word in words:
        if "\n" in word:
            raise fail("script-directive-line", word=word)
        if word.startswith("-") or not grouped:
            grouped.append(word)
        else:
            grouped[-1] += f" {word}"
    return tuple(grouped)
