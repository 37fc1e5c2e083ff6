"""What the named programs can load of an image: the files that a plan is made and checked for.

A program that is linked to an MPI loads what its link names. Python imports modules from its prefixes; other programs
that open libraries may open any; shells start anything. What is not known is kept: only what a program cannot
reach is left out.
"""

from __future__ import annotations

import enum
import posixpath
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fairlead.base.python_imports import package_of
from fairlead.base.shell_commands import SHELLS, commands, is_login_shells
from fairlead.elf.facts import AbiFamily, Elf, ImageFacts, MpiLibrary
from fairlead.elf.mpi_symbols import asked_by, contains_mpi, is_interface
from fairlead.mpi.cross_abi import MPI4PY_MODULE, is_python
from fairlead.swap import wrappers
from fairlead.swap.model import Request
from fairlead.swap.python_reach import Imported, imported

# Where a name without a slash is looked for, if the image does not say; as Apptainer and Docker do.
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What Debian's /etc/profile sets, for root and for others.
_LOGIN_PATH = f"{DEFAULT_PATH}:/usr/local/games:/usr/games"
_PATHS = re.compile(r"(?<![\w./$}-])(?:/[\w.+-]+){2,}")
_PYTHON_MODULE = re.compile(r"/(?:site|dist)-packages/|\.(?:cpython-\w+|abi3)[^/]*\.so$")
# Interpreters that load compiled code by packages alone, and what is in these; not Python, whose packages are by prefix.
_PACKAGES = (
    (re.compile(r"(R|Rscript)$"), re.compile(r"/R/(?:[^/]+/)*(?:site-)?library/")),
    (re.compile(r"octave(-cli|-gui)?(-\d[\d.]*)?$"), re.compile(r"\.(oct|mex)$")),
)
# They say what an MPI consists of, and start none.
_MPI_INFO = re.compile(r"/(?:ompi|oshmem)_info$")
# Programs of every system that start no other, as far as their words show.
_TOOLS = frozenset(
    {
        "awk", "basename", "cat", "chmod", "cp", "cut", "date", "df", "dirname", "du", "echo", "expr", "false", "find", "free",
        "gawk", "grep", "gunzip", "gzip", "head", "hostname", "id", "install", "ls", "lscpu", "mawk", "mkdir", "mktemp", "mv",
        "nproc", "paste", "printenv", "printf", "ps", "pwd", "readlink", "realpath", "rm", "rmdir", "sed", "seq", "sleep",
        "sort", "stat", "sync", "tail", "tar", "tee", "test", "touch", "tr", "true", "uname", "uniq", "unzip", "uptime", "wc",
        "which", "whoami", "zcat",
    }
)  # fmt: skip
_TOOL_STARTS = {  # what in the words of one starts another
    "find": re.compile(r"-(exec|ok)"),
    "sed": re.compile(r"(^|[;{}0-9$/ ])[gpIiMm0-9]*e([; }]|$)|^-\w*f|^--file"),
    "sort": re.compile(r"^--comp"),
    "tar": re.compile(r"^--(to-com|use-com|check|rsh|info|new-vol)|^-?\w*[IF]"),
    **dict.fromkeys(("awk", "gawk", "mawk"), re.compile(r"system|\||getline|^-f|^--file|^-[ilE]")),
}
_DEEPEST = 4  # scripts whose interpreter is a script; the kernel's own limit (execve(2))


class Kind(enum.StrEnum):
    """How a program comes to an MPI."""

    LINKED = "linked"  # by what it links, or it contains one
    PYTHON = "python"  # by modules that it imports
    PACKAGES = "packages"  # by those that it loads: R, Octave
    OPENS = "opens"  # by libraries that it opens
    STARTS = "starts"  # by programs that it starts
    STATIC = (
        "static"  # not at all, as far as can be seen: it loads no libraries, and starts nothing
    )
    NONE = "none"  # not at all
    MISSING = "missing"  # the image has no such program
    UNKNOWN = "unknown"  # the image's facts do not say


@dataclass(frozen=True)
class Program:
    """A named program; several of one name where the image does not say which comes first in PATH.

    Attributes:
        path: its real path in the image; empty if it is not there.
        chain: the paths that lead to it: symlinks, and the interpreters of scripts.
        perhaps: a text starts it next to others, and perhaps only one of them.
        words: the command; empty where it is not known.
    """

    asked: str
    path: str
    kind: Kind
    chain: tuple[str, ...] = ()
    perhaps: bool = False
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reach:
    """What some programs can load.

    Attributes:
        programs: empty: nothing was named, and anything may run.
        files: of the image's consumers, those that they are or can load.
        words: paths in the image that the command gives to its program.
        doubts: why a Python may not load a file of these, by path.
    """

    programs: tuple[Program, ...]
    files: tuple[Elf, ...]
    words: tuple[str, ...] = ()
    doubts: Mapping[str, str] = field(default_factory=dict)

    @property
    def exact(self) -> bool:
        """Each of its files will be loaded, not only may be."""
        kinds = {program.kind for program in self.programs}
        one_each = len({program.asked for program in self.programs}) == len(self.programs)
        return (
            bool(kinds)
            and one_each
            and kinds <= {Kind.LINKED, Kind.NONE, Kind.STATIC}
            and not any(program.perhaps for program in self.programs)
        )

    @property
    def certain(self) -> frozenset[str]:
        """The programs that will run."""
        return frozenset(program.path for program in self.programs if not program.perhaps)

    @property
    def open_ended(self) -> bool:
        """Which of its files will be loaded is not known: a program opens libraries or starts others, or there are several."""
        kinds = {program.kind for program in self.programs}
        several = any(program.perhaps for program in self.programs)
        return several or (bool(kinds) and kinds <= {Kind.OPENS, Kind.STARTS, Kind.UNKNOWN})

    @property
    def may_import(self) -> bool:
        """A Python may run, and import mpi4py."""
        others = (Kind.LINKED, Kind.PACKAGES, Kind.NONE, Kind.STATIC, Kind.MISSING)
        called = [p.kind not in others or MPI4PY_MODULE.match(p.path) for p in self.programs]
        return not called or any(called)


def programs_of(request: Request) -> tuple[str, ...]:
    """The programs that will run, as far as the user named them."""
    return request.apps or request.command[:1]


def interpreted(facts: ImageFacts, request: Request) -> tuple[str, ...]:
    """:func:`programs_of`, with its Python in place of a script such as torchrun, and the programs that its words name."""
    reached = reach(facts, request)
    programs = reached.programs
    if programs and all(program.kind is Kind.PYTHON for program in programs):
        started = {e.path for e in reached.files if e.can_start}.intersection(reached.words)
        return tuple(dict.fromkeys((*(program.path for program in programs), *sorted(started))))
    return programs_of(request)


def reach(facts: ImageFacts, request: Request) -> Reach:
    """What the programs of a request can load; all of the image if it names none."""
    request = _from_workdir(facts, request)
    programs = tuple(
        program for name in request.apps for program in _programs(facts, name, request)
    )
    if not request.apps and request.command:
        programs = tuple(_called(facts, request.command, request))
    if not programs:
        return Reach((), facts.consumers)
    paths = {path for program in programs for path in _loaded(facts, program, request)}
    if any(p.kind not in (Kind.MISSING, Kind.STATIC) for p in programs):
        paths |= _closure(facts, _preloaded(facts, request))
    own = tuple(e for n, e in request.outside.items() if n in {p.asked for p in programs})
    words: tuple[str, ...] = ()
    if any(p.kind in (Kind.PYTHON, Kind.PACKAGES, Kind.OPENS, Kind.STARTS) for p in programs):
        words = tuple(
            _real(facts, path)[0] for w in request.command[1:] for path in _PATHS.findall(w)
        )
        paths |= _closure(facts, [word for word in words if word in facts.leads])
    files = (*own, *(e for e in facts.consumers if e.path in paths))
    return Reach(programs, files, words, _doubts(facts, request, programs, words))


def _preloaded(facts: ImageFacts, request: Request) -> list[str]:
    """The files with an MPI, or that lead to one, which the image has its loader preload into every program."""
    words = request.image_preload.replace(":", " ").split()
    named = {*facts.preloaded, *(_real(facts, word)[0] for word in words)}
    return sorted(named.intersection(facts.leads))


def _from_workdir(facts: ImageFacts, request: Request) -> Request:
    """The request with relative paths of the image's programs as absolute ones, where they are known to be."""

    def placed(words: Sequence[str]) -> tuple[str, ...]:
        pairs = ((word, request.placed(word)) for word in words)
        return tuple(p if p != w and in_image(facts, p) else w for w, p in pairs)

    return replace(request, apps=placed(request.apps), command=placed(request.command))


def inside_of(facts: ImageFacts, request: Request) -> Elf | None:
    """The file with an MPI inside that the named programs run on; None where they need an MPI's library too."""
    reached = reach(facts, request)
    contain = [elf for elf in reached.files if contains_mpi(elf)]
    asked = any(asked_by(facts, elf) for elf in reached.files)
    return contain[0] if reached.exact and contain and not asked else None


def mpis_behind(facts: ImageFacts, reached: Reach) -> tuple[MpiLibrary, ...]:
    """The image's MPIs that named programs are linked to."""
    linked = [p.path for p in reached.programs if p.kind is Kind.LINKED]
    behind = _closure(facts, linked)
    return tuple(mpi for mpi in facts.mpis if mpi.path in behind)


def in_image(facts: ImageFacts, path: str) -> bool:
    """Whether an image has a program at an absolute path, perhaps behind symlinks."""
    return bool(_paths_of(facts, path, Request()))


def off_path(facts: ImageFacts, request: Request, path: str, name: str) -> tuple[str, ...]:
    """Where the image has a program that no folder of ``path`` has; empty where one has it, or that is not known."""
    folders = [folder for folder in path.split(":") if folder]
    unseen = (f[0] != "/" or _is_shown(f"{f}/{name}", request) for f in folders)
    if "/" in name or any(unseen):
        return ()
    if not folders or _first_in(facts, path, name):
        return ()
    return tuple(sorted(place for place in facts.programs if place.endswith(f"/{name}")))


def lost_interpreter(facts: ImageFacts, request: Request, program: Program) -> str:
    """The interpreter that a script names and the image lacks; empty where it has it, or a bind or the engine may show it."""
    line = facts.programs.get(program.path, "")
    if program.kind is not Kind.UNKNOWN or not line.startswith("#!"):
        return ""
    name = next(iter(_interpreter(line)), "")
    folders = [""] if name.startswith("/") else (searched_path(request) or DEFAULT_PATH).split(":")
    places = [f"{folder}/{name}".replace("//", "/") for folder in folders]
    known = all(place.startswith("/") and not _is_shown(place, request) for place in places)
    return name if known else ""


def _is_shown(path: str, request: Request) -> bool:
    """Whether the container has there what a bind or the engine shows, and not the image."""
    shown = (*(bind.target for bind in request.binds), "/home", "/root", "/tmp", "/var/tmp")
    return any(_is_below(path, place) for place in shown)


@dataclass(frozen=True)
class LostByLogin:
    """What a login shell of Debian's does not find: its profile sets PATH anew.

    Attributes:
        shell: the program or script that is one.
        places: of the programs that it is to start, by their names.
    """

    shell: str
    places: Mapping[str, str]


def lost_by_login(facts: ImageFacts, request: Request) -> tuple[LostByLogin, ...]:
    """The login shells of a command, its scripts and their texts, where their PATH lacks what they are to start."""
    if not facts.os.startswith("Debian") or not request.command:
        return ()
    shells = []
    for shell, text in _logins(facts, request.command, request):
        lost = {}
        for name in dict.fromkeys(command[0] for command in text if "/" not in command[0]):
            place, other = (
                _first_in(facts, path, name) for path in (searched_path(request), _LOGIN_PATH)
            )
            # A virtual environment's Python is a link, and not the same as where that leads.
            folders = {_real(facts, posixpath.dirname(path))[0] for path in (place, other)}
            if place and len(folders) > 1:
                lost[name] = place
        shells += [LostByLogin(shell, lost)] if lost else []
    return tuple(shells)


def _logins(
    facts: ImageFacts, command: Sequence[str], request: Request, deepest: int = _DEEPEST
) -> Iterator[tuple[str, Sequence[Sequence[str]]]]:
    """The login shells that a command comes to, each with the commands of its text."""
    programs = _programs(facts, command[0], request)
    plain, asked = _without_login(command), wrappers.su(command)
    first = next(iter(_scripts(facts, command[0], programs, request)), ("", "", None))
    if asked and asked.login:
        text, shell = commands(asked.text, request.workdir), command[0]
    elif is_login_shells(first[1]):
        text, shell = first[2], f"{command[0]} ({first[1]})"
    else:
        text, _ = _text(facts, plain or command, request, programs)
        shell = command[0] if plain and plain != tuple(command) else ""
    if shell:
        yield shell, text or ()
    inner = _started(command) if text is None else text
    for words in inner if deepest else ():
        yield from _logins(facts, words, request, deepest - 1)


def _scripts(
    facts: ImageFacts, name: str, programs: Sequence[Program], request: Request
) -> Iterator[tuple[str, str, tuple[tuple[str, ...], ...] | None]]:
    """The scripts that a program is: path, first line, and the commands, None where not all are seen."""
    if text := request.texts.get(name):
        yield name, text.partition("\n")[0], commands(text, request.workdir)
        return
    for path in {path for program in programs for path in program.chain}:
        if (line := facts.programs.get(path, "")).startswith("#!"):
            yield path, line, facts.commands.get(path)


def named_within(facts: ImageFacts, request: Request) -> tuple[tuple[Program, bool], ...]:
    """The programs of a command, of what it starts, and of the texts that it gives to shells, wherever they can be read.

    Each with whether nothing else stands there that could be meant instead.
    """
    request = _from_workdir(facts, request)
    commands_ = [request.command] if request.command else [(app,) for app in request.apps]
    return tuple(
        program
        for command in commands_
        for program in _within(facts, command, request, _DEEPEST, True)
    )


def parted_by(facts: ImageFacts, request: Request) -> str:
    """How a command, or what it starts, parts the ranks of a node (`unshare -r`); empty where it does not."""
    programs = named_within(facts, request)
    return next((how for p, _ in programs if p.words and (how := wrappers.parts(p.words))), "")


def _within(
    facts: ImageFacts, command: Sequence[str], request: Request, deepest: int, alone: bool
) -> Iterator[tuple[Program, bool]]:
    programs = _programs(facts, command[0], request)
    yield from ((replace(program, words=tuple(command)), alone) for program in programs)
    if not deepest:
        return
    text, _ = _text(facts, _without_login(command) or command, request, programs)
    starts = any(program.kind is Kind.STARTS for program in programs)
    inner = [words for words in text if not _is_tool(words)] if text else []
    if not text and starts:
        inner = list(_started(command))
    for words in inner:
        yield from _within(facts, words, request, deepest - 1, alone and len(inner) == 1)


def texts_within(facts: ImageFacts, request: Request) -> Iterator[tuple[tuple[str, ...], ...]]:
    """The commands in each text that a command leads to, as far as it can be read, without those that start no other; what
    a wrapper starts is a text of one command.
    """
    request = _from_workdir(facts, request)
    return _texts_within(facts, request.command, request, _DEEPEST)


def _texts_within(
    facts: ImageFacts, command: Sequence[str], request: Request, deepest: int
) -> Iterator[tuple[tuple[str, ...], ...]]:
    if not command or not deepest:
        return
    programs = _programs(facts, command[0], request)
    text, is_shell = _text(facts, _without_login(command) or command, request, programs)
    starts = not is_shell and any(program.kind is Kind.STARTS for program in programs)
    inner = text or (tuple(_started(command)) if starts else ())
    if inner := tuple(words for words in inner if not _is_tool(words)):
        yield inner
    for words in inner:
        yield from _texts_within(facts, words, request, deepest - 1)


def _first_in(facts: ImageFacts, path: str, name: str) -> str:
    """The first program of a name in the folders of ``path``; empty without one."""
    places = (posixpath.normpath(f"{folder}/{name}") for folder in path.split(":") if folder)
    return next((place for place in places if _real(facts, place)[0] in facts.programs), "")


def on_path(facts: ImageFacts, request: Request, name: str) -> str:
    """Which program of the image a name is in the container, by PATH or, where that is not known, the usual one; the name
    itself where there is none.
    """
    path = searched_path(request) or DEFAULT_PATH
    return name if "/" in name else _first_in(facts, path, name) or name


def _without_login(command: Sequence[str]) -> tuple[str, ...]:
    """The words of a shell without the option that makes it a login shell; no words for another program."""
    if not command or posixpath.basename(command[0]) not in SHELLS:
        return ()
    kept, rest = [command[0]], list(command[1:])
    while rest and rest[0][:1] in ("-", "+"):
        option = rest.pop(0)
        short = option.replace("l", "", 1) if re.fullmatch(r"-\w*l\w*", option) else option
        kept += [short] if short not in ("-", "--login") else []
    return (*kept, *rest)


def searched_path(request: Request) -> str:
    """PATH of the container; empty where it is not known."""
    path = _variable(request, "PATH")
    around = (request.searched.get("PREPEND_PATH"), path, request.searched.get("APPEND_PATH"))
    return ":".join(filter(None, around)) if path else ""


def relevant(facts: ImageFacts, request: Request, family: AbiFamily) -> tuple[Elf, ...]:
    """Of the files in reach, those that a swap of ``family`` is about."""
    homes = [mpi.path.rpartition("/")[0] for mpi in facts.mpis]
    reached = reach(facts, request)
    used, asked = _used(facts, reached, homes)
    kept = []
    for elf in reached.files:
        if _is_interface(elf, homes) and elf.path not in used and elf.soname not in asked:
            continue  # an interface to another language that nothing in reach uses
        if is_plugin(elf, homes) or (
            _MPI_INFO.search(elf.path) and elf.path not in _named(reached)
        ):
            continue  # the image's MPI alone would open it, or it is a part of that
        families = families_of(facts, elf)
        if families and family not in families:
            continue  # `families` reports it; of mpi4py's modules the one of the mapped family is taken
        if contains_mpi(elf) and not reached.exact and elf.path not in reached.certain:
            continue  # `static` reports it
        kept.append(elf)
    return tuple(kept)


def _is_interface(elf: Elf, homes: Collection[str]) -> bool:
    """An MPI's own interface to another language."""
    return elf.path.rpartition("/")[0] in homes and is_interface(elf)


def _used(facts: ImageFacts, reached: Reach, homes: Collection[str]) -> tuple[set[str], set[str]]:
    """What files in reach load, and the names that they ask for; parts of an MPI ask for nothing."""
    own = (_is_interface, is_plugin)
    named = _named(reached)
    users = [
        elf
        for elf in reached.files
        if not any(part(elf, homes) for part in own)
        and (elf.path in named or not _MPI_INFO.search(elf.path))
    ]
    closed = _closure(facts, [elf.path for elf in users])
    return closed, {name for elf in users for name in elf.needed}


def by_family(facts: ImageFacts, reached: Reach) -> dict[AbiFamily, list[Elf]]:
    """The families that files in reach are compiled for, and those files; mpi4py's wheel, which has all, is left out.

    Nor do the parts of an MPI count: its interfaces to other languages, and the programs that come with it.
    """
    homes = [mpi.path.rpartition("/")[0] for mpi in facts.mpis]
    tools = {posixpath.join(posixpath.dirname(home), "bin") for home in homes}
    families: dict[AbiFamily, list[Elf]] = {}
    siblings = _siblings(facts)
    for elf in reached.files:
        folder = elf.path.rpartition("/")[0]
        named = elf.path in _named(reached)
        tool = folder in tools or _MPI_INFO.search(elf.path)
        if is_interface(elf) or (tool and not named) or elf.path in siblings:
            continue
        if is_plugin(elf, homes):
            continue
        for family in families_of(facts, elf):
            families.setdefault(family, []).append(elf)
    return families


def families_of(facts: ImageFacts, elf: Elf) -> tuple[AbiFamily, ...]:
    """The families that a file asks for; where it asks for none, as Fortran and OpenSHMEM programs do, those behind it."""
    if asked := asked_by(facts, elf):
        return tuple(dict.fromkeys(asked.values()))
    behind = _closure(facts, [elf.path])
    users = (e for e in facts.consumers if e.path in behind)
    return tuple(dict.fromkeys(f for e in users for f in asked_by(facts, e).values()))


def is_plugin(elf: Elf, homes: Iterable[str]) -> bool:
    """Whether a file is a component of an Open MPI whose library is in one of ``homes``."""
    folder, _, name = elf.path.rpartition("/")
    inside = any(_is_below(folder, home) for home in homes)
    return inside and name.startswith(("mca_", "ompi_")) and name.endswith(".so")


def perhaps_fit(
    facts: ImageFacts, reached: Reach, files: Iterable[Elf], unfit: Collection[str]
) -> bool:
    """Whether what is started or opened, of which nothing is known, can be one of ``files`` without any that is ``unfit``.

    That is a program, a module, or a library that no other file of the image needs, and not an MPI's own interface.
    """
    if not reached.open_ended:
        return False
    needed = {
        real for path, needs in facts.leads.items() for real in needs.values() if real != path
    }
    alone = (e.path for e in files if e.path not in needed and not is_interface(e))
    return any(_closure(facts, [path]).isdisjoint(unfit) for path in alone)


def started(facts: ImageFacts, reached: Reach) -> set[str]:
    """The programs with an MPI that named scripts start: those in their text, where each contains one.

    Of several kinds it is not known which the script starts.
    """
    contain = {elf.path for elf in facts.consumers if contains_mpi(elf)}
    if contain.issuperset(perhaps := {p.path for p in reached.programs if p.perhaps}) and perhaps:
        return perhaps
    return {path for named in _texts(facts, reached) if contain.issuperset(named) for path in named}


def in_text(facts: ImageFacts, reached: Reach) -> set[str]:
    """The programs with an MPI, and the MPIs, that the text of named scripts and programs has, or the command itself."""
    return {path for named in _texts(facts, reached) for path in named} | set(reached.words)


def in_text_closure(facts: ImageFacts, reached: Reach) -> set[str]:
    """The files that are loaded by what :func:`in_text` has; empty where no text names anything, or all files in reach are."""
    named = set() if reached.exact else in_text(facts, reached) & _known(facts)
    return _closure(facts, {*named, *_named(reached)}) if named else set()


def _known(facts: ImageFacts) -> set[str]:
    return {e.path for e in facts.consumers} | {mpi.path for mpi in facts.mpis}


def _texts(facts: ImageFacts, reached: Reach) -> Iterator[Sequence[str]]:
    chains = (path for p in reached.programs for path in p.chain)
    return (facts.named.get(path, ()) for path in (*chains, *reached.words))


def _named(reached: Reach) -> set[str]:
    return {program.path for program in reached.programs}


def _siblings(facts: ImageFacts) -> set[str]:
    """mpi4py's modules where it has one for each family, and takes the one whose MPI is there."""
    folders: dict[str, list[str]] = {}
    for elf in facts.consumers:
        if match := MPI4PY_MODULE.match(elf.path):
            folders.setdefault(match[1], []).append(elf.path)
    return {path for paths in folders.values() if len(paths) > 1 for path in paths}


def _called(
    facts: ImageFacts, command: Sequence[str], request: Request, deepest: int = _DEEPEST
) -> list[Program]:
    """The programs of a command.

    Behind one that starts others (tini, env, nice) it is the one that the first operand names, and behind a shell those
    that its text starts, if that names them all.
    """
    programs = _programs(facts, command[0], request)
    programs = [replace(program, words=tuple(command)) for program in programs]
    starts = programs and all(program.kind is Kind.STARTS for program in programs)
    if not starts and command[0] not in request.texts:
        return programs
    text, is_shell = _text(facts, command, request, programs)
    if text and deepest and (behind := _all(facts, text, request, deepest - 1)):
        return behind
    if is_shell or not starts:
        return programs
    return _behind(facts, command, request, deepest) or programs


def _behind(
    facts: ImageFacts, command: Sequence[str], request: Request, deepest: int
) -> list[Program]:
    """The programs that one which starts others is given; empty where they are not known to use MPI."""
    surely = {Kind.LINKED, Kind.PYTHON, Kind.PACKAGES}
    perhaps = {*surely, Kind.OPENS, Kind.STARTS}  # `make install` is not a program
    first: list[Program] | None = None
    for words in _operands(command):
        behind = _called(facts, words, request, deepest)
        kinds = {program.kind for program in behind}
        if kinds and kinds <= surely:
            return behind
        # `perf stat lmp` and `gdb -ex run --args lmp` have words of their own that are also names of programs.
        is_shell = posixpath.basename(words[0]) in SHELLS
        if first is None or is_shell:
            first = behind if kinds <= perhaps else []
        if is_shell:
            break
    return first or []


def _operands(command: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """What a program that starts others may start: the command where its form is known, else each word with those after it."""
    for words in _started(command):
        yield words
        if wrappers.is_known(command) or wrappers.su(command):
            return
        later = (i for i, word in enumerate(words) if i and not word.startswith("-"))
        yield from (words[i:] for i in later)


def _started(command: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The command behind a program that starts another; none where its words do not show it."""
    if asked := wrappers.su(command):
        behind = () if asked.login else asked.command
    elif wrappers.is_known(command):
        behind = wrappers.behind(command)
    else:
        # An option, a number that it takes, a variable.
        own = ("-", *"0123456789")
        words = enumerate(command[1:], 1)
        first = (i for i, w in words if w and not w.startswith(own) and "=" not in w)
        behind = tuple(command[next(first, len(command)) :])
    if behind:
        yield behind


def _text(
    facts: ImageFacts, command: Sequence[str], request: Request, programs: Sequence[Program]
) -> tuple[tuple[tuple[str, ...], ...] | None, bool]:
    """The commands in what a shell reads, None where not all are seen; and whether the program is a shell at all."""
    if request.image_env.get("BASH_ENV"):
        return None, True  # it is read before any text
    if scripts := list(_scripts(facts, command[0], programs, request)):
        _, line, text = scripts[0]
        return (text if len(scripts) == 1 and not is_login_shells(line) else None), True
    if (asked := wrappers.su(command)) and not asked.command:
        shell = posixpath.basename(asked.shell) or "sh"
        readable = asked.text and not asked.login and shell in SHELLS
        return (commands(asked.text, request.workdir) if readable else None), True
    names = {posixpath.basename(path) for program in programs for path in program.chain[-2:]}
    if not names & SHELLS:
        return None, False
    given = shell_given(command)
    if given.text:
        return commands(given.text, request.workdir), True
    if given.script in request.texts:
        return commands(request.texts[given.script], request.workdir), True
    return facts.commands.get(_real(facts, given.script)[0]), True


@dataclass(frozen=True)
class Given:
    """What the words of a shell give it: a text by ``-c``, or a script; neither where that is not known."""

    text: str = ""
    script: str = ""


def shell_given(command: Sequence[str]) -> Given:
    """What the words of a shell give it; nothing is known of a login shell, whose profile may set a search path.

    >>> shell_given(("bash", "-euo", "pipefail", "-c", "lmp -in in.melt"))
    Given(text='lmp -in in.melt', script='')
    """
    words, is_text = list(command[1:]), False
    while words and words[0][:1] in ("-", "+"):
        option = words.pop(0)
        if option == "--":
            break
        if not re.fullmatch(r"[-+][abefhkmnuvxBCEHPTco]+", option):
            return Given()
        is_text |= option[0] == "-" and "c" in option
        if "o" in option and words:
            words.pop(0)
    if not words:
        return Given()
    return Given(text=words[0]) if is_text else Given(script=words[0])


def _all(
    facts: ImageFacts, lines: Sequence[Sequence[str]], request: Request, deepest: int
) -> list[Program]:
    """The programs of a text's commands, without those that need no MPI; empty if one of them can start anything."""
    programs: dict[str, list[Program]] = {}
    for words in lines:
        if _is_tool(words) and not any(
            program.kind is Kind.LINKED for program in _programs(facts, words[0], request)
        ):
            continue
        behind = _called(facts, words, request, deepest)
        unseen = (Kind.STARTS, Kind.UNKNOWN, Kind.MISSING)
        if not behind or any(program.kind in unseen for program in behind):
            return []
        for program in behind:
            if program.kind is not Kind.NONE and program not in programs.setdefault(
                program.asked, []
            ):
                programs[program.asked].append(program)
    return [
        replace(program, perhaps=len(programs) > 1)
        for same in programs.values()
        for program in same
    ]


def _is_tool(words: Sequence[str]) -> bool:
    folder, _, name = words[0].rpartition("/")
    starts = _TOOL_STARTS.get(name)
    known = name in _TOOLS and folder in ("", "/bin", "/usr/bin")
    return known and not (starts and any(map(starts.search, words[1:])))


def _programs(facts: ImageFacts, name: str, request: Request) -> list[Program]:
    if elf := request.outside.get(name):
        linked = contains_mpi(elf) or asked_by(facts, elf) or _first(facts, elf)
        return [Program(name, elf.path, Kind.LINKED if linked else Kind.UNKNOWN)]
    if not facts.programs:
        path = _by_name(facts, name) or (name if name in request.apps else "")
        return [Program(name, path, Kind.UNKNOWN)]
    chains = [
        c for links in _paths_of(facts, name, request) for c in _chains(facts, links, request)
    ]
    if not chains:
        folders = [bind.target for bind in request.binds]
        elsewhere = name.startswith(".") or (
            any(_is_below(name, f) for f in folders) if name.startswith("/") else bool(folders)
        )
        return [Program(name, "", Kind.UNKNOWN if elsewhere else Kind.MISSING)]
    return [
        Program(name, chain[-1], _kind(facts, chain, bool(request.apps)), tuple(chain))
        for chain in chains
    ]


def _kind(facts: ImageFacts, chain: Sequence[str], asked_for: bool) -> Kind:
    path, what = chain[-1], facts.programs.get(chain[-1], "")
    if path in facts.leads or any(e.path == path and contains_mpi(e) for e in facts.consumers):
        return Kind.LINKED
    if what.startswith("#!"):
        return Kind.UNKNOWN  # its interpreter is not in the image
    if any(map(is_python, chain)):
        return Kind.PYTHON
    if any(map(_of_packages, chain)):
        return Kind.PACKAGES
    kinds = {"starts": Kind.STARTS, "opens": Kind.OPENS, "static": Kind.STATIC}
    if asked_for and "static" in what.split():
        return Kind.STATIC  # named as the one that uses MPI, and not as one that starts it
    return next((kind for flag, kind in kinds.items() if flag in what.split()), Kind.NONE)


def _of_packages(path: str) -> re.Pattern[str] | None:
    """Which files an interpreter can load, by its name; None for another program."""
    name = posixpath.basename(path)
    return next((inside for names, inside in _PACKAGES if names.match(name)), None)


def _chains(
    facts: ImageFacts, chain: list[str], request: Request, deepest: int = _DEEPEST
) -> list[list[str]]:
    """The paths from a program to each that may run: to the interpreters of scripts."""
    words = _interpreter(facts.programs.get(chain[-1], ""))
    behind = _paths_of(facts, words[0], request) if words and deepest else []
    longer_chains = [_chains(facts, [*chain, *links], request, deepest - 1) for links in behind]
    return [longer for chains in longer_chains for longer in chains] or [chain]


def _interpreter(line: str) -> list[str]:
    """The command in the first line of a script, or the one that its ``env`` starts; nothing of another program."""
    words = line.removeprefix("#!").split() if line.startswith("#!") else []
    if words and words[0].endswith("/env"):
        return [w for w in _split(words[1:]) if not w.startswith("-") and "=" not in w]
    return words


def _split(words: Sequence[str]) -> list[str]:
    """The words of ``env -S``."""
    try:
        return shlex.split(" ".join(words))
    except ValueError:
        return list(words)


def _paths_of(facts: ImageFacts, name: str, request: Request) -> list[list[str]]:
    """The programs that a name can mean, each after the symlinks that lead to it."""
    if name.startswith("/"):
        places = [name]
    elif "/" in name:
        return []
    else:
        path = searched_path(request)
        places = [f"{folder}/{name}" for folder in (path or DEFAULT_PATH).split(":") if folder]
        # Engines read variables of the image from places that fairlead does not.
        places += sorted(p for p in facts.programs if p.endswith(f"/{name}"))
    paths: dict[str, list[str]] = {}
    if name in facts.leads:
        return [[name]]  # a library or a module, to ask about it alone
    for place in places:
        real, links = _real(facts, posixpath.normpath(place))
        if real in facts.programs:
            paths.setdefault(place if links else real, [*links, real])
            if "/" in name or path:
                break
    return list(paths.values())


def _real(facts: ImageFacts, path: str) -> tuple[str, list[str]]:
    """A path without symlinks, by the image's facts, and the links to programs on the way."""
    links: list[str] = []
    for _ in range(_DEEPEST * 2):
        parts = path.split("/")
        for count in range(2, len(parts) + 1):
            begin, rest = "/".join(parts[:count]), parts[count:]
            if (what := facts.programs.get(begin, "")).startswith("-> "):
                links += [] if rest else [path]
                path = "/".join([what.removeprefix("-> "), *rest])
                break
        else:
            break
    return path, links


def _by_name(facts: ImageFacts, name: str) -> str:
    """The consumer of that path or name; empty without one."""
    called = (e for e in facts.consumers if name in (e.path, posixpath.basename(e.path)))
    return next((e.path for e in called if e.interpreter and not e.soname), "")


def _loaded(facts: ImageFacts, program: Program, request: Request) -> set[str]:
    """Paths of the files that a program is or can load, among those that lead to an MPI."""
    everything = {e.path for e in facts.consumers}
    starts = {e.path for e in facts.consumers if e.can_start or (e.interpreter and not e.soname)}
    if program.asked in request.outside:
        if program.kind is Kind.LINKED:
            return _closure(facts, _first(facts, request.outside[program.asked]))
        return everything
    if program.kind is Kind.LINKED:
        return _closure(facts, [program.path])
    if program.kind is Kind.PYTHON:
        return _closure(facts, [program.path, *_modules(facts, program, request)])
    if program.kind is Kind.PACKAGES:
        inside = next(filter(None, map(_of_packages, program.chain)))
        return _closure(facts, [e.path for e in facts.consumers if inside.search(e.path)])
    if program.kind is Kind.OPENS:
        opened = everything - starts
        if "python" not in facts.programs.get(program.path, "").split():
            opened = {path for path in opened if not _PYTHON_MODULE.search(path)}
        return opened | {program.path}
    if program.kind is Kind.UNKNOWN and program.path and not facts.programs:
        return (everything - starts) | {program.path}
    if program.kind in (Kind.STATIC, Kind.NONE, Kind.MISSING):
        return set()
    return everything


def _first(facts: ImageFacts, elf: Elf) -> list[str]:
    """The files of the image that a program of this machine needs, by name."""
    named = {e.soname: e.path for e in facts.consumers if e.soname}
    return [named[name] for name in elf.needed if name in named]


def _closure(facts: ImageFacts, paths: Iterable[str]) -> set[str]:
    visited, pending = set(paths), list(paths)
    while pending:
        new = set(facts.leads.get(pending.pop(), {}).values()) - visited
        visited |= new
        pending += new
    return visited


def _modules(facts: ImageFacts, program: Program, request: Request) -> dict[str, str]:
    """The extension modules that a Python can import, each with why that is not certain; empty where it is.

    A virtual environment's Python is a link to another one, whose modules it may see too.
    """
    prefixes = {
        posixpath.dirname(posixpath.dirname(path)) for path in program.chain if is_python(path)
    }
    if "/usr" in prefixes:
        prefixes.add("/usr/local")  # Debian's searches both
    prefixes.discard("/")
    python_path = [_real(facts, f)[0] for f in _variable(request, "PYTHONPATH").split(":") if f]
    modules = {e.path for e in facts.consumers if not e.can_start}
    modules |= set(facts.leads)
    inside = tuple(f"{prefix}/lib" for prefix in prefixes)
    paths = (path for path in modules if re.search(r"/python3|-packages/", path))
    more = (p for p in modules if any(_is_below(p, folder) for folder in python_path))
    there = {*more, *(path for path in paths if python_path or path.startswith(inside))}
    known = imported(facts, request, program.words, program.chain)
    return {path: doubt for path in sorted(there) if (doubt := _doubt(known, path)) is not None}


def _doubt(known: Imported | None, path: str) -> str | None:
    """Why it is not certain that a Python imports a module, empty where it is or nothing is asked; None: it does not."""
    package = package_of(path)[1]
    if known is None or not package:
        return ""
    doubt = known.doubt(package)
    return f"{package}, which leads to it, may be imported: {doubt}" if doubt else doubt


def _doubts(
    facts: ImageFacts, request: Request, programs: Iterable[Program], words: Iterable[str]
) -> dict[str, str]:
    """Of the files in reach, those that only packages lead to of which it is not certain that a Python imports them."""
    sure, doubts = (
        {*words, *(p.path for p in programs if p.kind is not Kind.PYTHON)},
        dict[str, str](),
    )
    for program in programs:
        if program.kind is Kind.PYTHON:
            modules = _modules(facts, program, request)
            sure |= {path for path, doubt in modules.items() if not doubt}
            for path in (path for path, doubt in modules.items() if doubt):
                for behind in _closure(facts, [path]):
                    doubts.setdefault(behind, modules[path])
    certain = _closure(facts, sure) if doubts else set()
    return {path: why for path, why in doubts.items() if path not in certain}


def _variable(request: Request, name: str) -> str:
    """A variable as the container has it; empty without it."""
    return request.searched.get(name, request.image_env.get(name, ""))


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
