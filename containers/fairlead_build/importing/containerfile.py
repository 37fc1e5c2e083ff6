"""Instructions of a Containerfile, each with its lines.

Source: Dockerfile reference, docs.docker.com/reference/dockerfile: format, escape, here-documents,
environment replacement, and each instruction. Read by hand: spython's and dockerfile-parse's readers
keep neither here-documents nor quotes, and replace a variable that is unknown here by nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairlead_build.importing import images
from fairlead_build.importing.commands import Interpreter, resolved
from fairlead_build.importing.context import Context
from fairlead_build.importing.ledger import Ledger
from fairlead_build.importing.located import Located, of_lines, split_lines

_HEREDOC = re.compile(r"<<(-?)\s*(['\"]?)([A-Za-z0-9_.]+)\2")
_FLAG = re.compile(r"--([a-z-]+)(?:=(\S*))?\s*")
_SHELLS = {"sh", "bash", "dash", "ash"}
_FILES = "[files]"
_SERVICE = "nothing of an image runs as a service"
_PROGRAM = ("an image has no program of its own", "the command behind `fairlead run NAME --`")
_UNUSED = {
    "EXPOSE": ("engines of HPC sites share the host's network", "nothing"),
    "VOLUME": ("an image is read-only, and folders of the host are bound", "`fairlead run --bind`"),
    "STOPSIGNAL": (_SERVICE, "nothing"),
    "HEALTHCHECK": (_SERVICE, "a `verify` next to the recipe"),
    "ONBUILD": (
        "a recipe is extended by `extends`",
        "its packages in the recipe that extends this",
    ),
    "ENTRYPOINT": _PROGRAM,
    "CMD": _PROGRAM,
}
Row = tuple[int, str]


@dataclass(frozen=True)
class Body:
    """A here-document; ``expanded`` when variables are replaced in it."""

    delimiter: str
    expanded: bool
    text: Located


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes:
        where: all of its lines.
        value: what follows the keyword, comments and line ends taken out.
        bodies: its here-documents.
        closed: all of them end.
    """

    keyword: str
    where: Located
    value: Located
    bodies: tuple[Body, ...] = ()
    closed: bool = True


@dataclass
class _Stage:
    begin: Instruction
    base: str
    name: str = ""
    instructions: list[Instruction] = field(default_factory=list)


def read(text: str, ledger: Ledger, folder: Path) -> None:
    """Reads a Containerfile into ``ledger``. Local files are those of ``folder``."""
    escape = _escape(text)
    arguments: dict[str, str] = {}
    stages: list[_Stage] = []
    for instruction in instructions(text, escape):
        if instruction.keyword == "FROM":
            stages.append(_stage(instruction, arguments, escape))
        elif stages:
            stages[-1].instructions.append(instruction)
        elif instruction.keyword == "ARG":
            _argument(instruction, arguments, ledger, escape)
        else:
            ledger.lose(instruction.where, "it stands before the first FROM", "write it below")
    used = _used(stages)
    for stage in stages:
        if stage not in used:
            why = "it belongs to a stage that the last one does not start from"
            for instruction in (stage.begin, *stage.instructions):
                ledger.lose(instruction.where, why, "what is built there: a [[source]] with `run`")
    interpreter, context = Interpreter(ledger), Context(folder, ledger)
    for stage in used:
        _from(stage, ledger, first=stage is used[0])
        _Reader(ledger, interpreter, context, arguments, escape).stage(stage)


def _escape(text: str) -> str:
    """The parser directive `# escape=`; directives stand above everything else."""
    for _, line in split_lines(text):
        match = re.fullmatch(r"\s*#\s*([A-Za-z]+)\s*=\s*(\S+)\s*", line)
        if match is None:
            break
        if match[1].lower() == "escape" and match[2] in ("\\", "`"):
            return match[2]
    return "\\"


def instructions(text: str, escape: str) -> Iterator[Instruction]:
    """The instructions of a file, in order."""
    rows = split_lines(text)
    at = 0
    while at < len(rows):
        if _is_blank(rows[at][1]):
            at += 1
            continue
        begin = at
        parts, at = _joined(rows, at, escape)
        whole = of_lines(parts, "").strip()
        keyword = re.split(r"\s", whole.text, maxsplit=1)[0]
        value = whole[len(keyword) :].strip()
        bodies, closed = [], True
        if keyword.upper() in ("RUN", "COPY", "ADD"):
            for match in _HEREDOC.finditer(value.text):
                if value.text[max(0, match.start() - 1) : match.start()] == "<":
                    continue  # <<< is a here-string
                body, at, ends = _body(rows, at, match[3], tabs=bool(match[1]))
                closed = closed and ends
                bodies.append(Body(match[3], not match[2], body))
        yield Instruction(keyword.upper(), of_lines(rows[begin:at]), value, tuple(bodies), closed)


def _is_blank(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")


def _joined(rows: list[Row], at: int, escape: str) -> tuple[list[Row], int]:
    """The lines of the instruction that begins at ``at``, and where the next one begins."""
    parts: list[Row] = []
    while at < len(rows):
        number, line = rows[at]
        at += 1
        if parts and _is_blank(line):
            continue  # within an instruction, comments and empty lines are passed over
        goes_on = re.search(re.escape(escape) + r"[ \t]*$", line)
        parts.append((number, line[: goes_on.start()] if goes_on else line))
        if not goes_on:
            break
    return parts, at


def _body(rows: list[Row], at: int, delimiter: str, *, tabs: bool) -> tuple[Located, int, bool]:
    """A here-document that begins at ``at``: its text, where it ends, and whether it does."""
    body: list[Row] = []
    while at < len(rows):
        number, line = rows[at]
        at += 1
        line = line.lstrip("\t") if tabs else line
        if line == delimiter:
            return of_lines(body), at, True
        body.append((number, line))
    return of_lines(body), at, False


def _stage(instruction: Instruction, arguments: Mapping[str, str], escape: str) -> _Stage:
    stated = [w for w in instruction.value.text.split() if not w.startswith("--")]
    base = value_of(stated[0], arguments, escape) if stated else None
    named = len(stated) == 3 and stated[1].lower() == "as"
    return _Stage(instruction, base or "", stated[2].lower() if named else "")


def _used(stages: list[_Stage]) -> list[_Stage]:
    """The last stage, and those it starts from, the lowest first."""
    used = stages[-1:]
    while used:
        earlier = stages[: stages.index(used[0])]
        below = [s for s in earlier if s.name and s.name == used[0].base.lower()]
        if not below:
            break
        used.insert(0, below[-1])
    return used


def _from(stage: _Stage, ledger: Ledger, *, first: bool) -> None:
    where, whole = stage.begin.where, True
    for word in stage.begin.value.text.split():
        if word.startswith("--"):
            why = "a recipe is built on a machine of its own kind"
            whole = ledger.lose(where, why, "nothing", word)
    if first:
        whole = images.set_base(ledger, where, stage.base) and whole
    if whole:
        ledger.carry(where)


def _argument(
    instruction: Instruction, arguments: dict[str, str], ledger: Ledger, escape: str
) -> None:
    """ARG: its default is put where it is used; without one, only a build could know it."""
    whole = bool(instruction.value)
    for word in words(instruction.value.text, escape):
        name, equals, raw = word.partition("=")
        value = value_of(raw, arguments, escape) if equals else None
        if value is not None:
            arguments[name] = value
        elif equals or name not in arguments:
            arguments.pop(name, None)
            whole = ledger.lose(
                instruction.where, "a recipe has no arguments, and this one has no default",
                "write its value where it is used", f"ARG {word}",
            )  # fmt: skip
    if whole:
        ledger.carry(instruction.where)


class _Reader:
    """Reads the instructions of one stage.

    A method `_NAME` reads the instruction NAME, and returns whether all of it was carried: False
    also where it has accounted for its lines itself.
    """

    def __init__(
        self,
        ledger: Ledger,
        interpreter: Interpreter,
        context: Context,
        arguments: dict[str, str],
        escape: str,
    ):
        self.ledger, self.interpreter, self.context = ledger, interpreter, context
        self.outer, self.escape = arguments, escape
        self.arguments: dict[str, str] = {}
        self.shell = True  # whether RUN means a shell that is known here

    def stage(self, stage: _Stage) -> None:
        for instruction in stage.instructions:
            where = instruction.where
            reader = getattr(self, f"_{instruction.keyword.lower()}", None)
            if instruction.keyword in _UNUSED:
                self._unused(instruction)
            elif not instruction.closed:
                self.ledger.lose(where, "its here-document never ends", "end it")
            elif reader is None or not instruction.value:
                why = "no such instruction is known" if reader is None else "it says nothing"
                self.ledger.lose(where, why, "check its spelling")
            elif reader(instruction):
                self.ledger.carry(where)

    @property
    def variables(self) -> dict[str, str]:
        return {**self.arguments, **self.ledger.variables}

    def _value(self, raw: str) -> str | None:
        return value_of(raw, self.variables, self.escape)

    def _unused(self, instruction: Instruction) -> None:
        value = instruction.value.text
        exec_form = _json_list(value)
        idle = value.upper() == "NONE" or exec_form == []
        if instruction.keyword == "CMD":
            program = exec_form if exec_form is not None else value.split()
            idle = idle or (len(program) == 1 and _is_shell(program[0]))
        if idle:
            self.ledger.carry(instruction.where)
        else:
            self.ledger.lose(instruction.where, *_UNUSED[instruction.keyword])

    def _arg(self, instruction: Instruction) -> bool:
        names = instruction.value.text.split()
        self.arguments |= {name: self.outer[name] for name in names if name in self.outer}
        _argument(instruction, self.arguments, self.ledger, self.escape)
        return False

    def _env(self, instruction: Instruction) -> bool:
        where, lose = instruction.where, self.ledger.lose
        pairs = list(_pairs(instruction.value.text, self.escape))
        whole = bool(pairs) or lose(where, "it names no variable", "[env]")
        before = self.variables  # what all values of one instruction see
        for key, raw in pairs:
            name = value_of(key, {}, self.escape) or key
            value = None if raw is None else value_of(raw, before, self.escape)
            shown = f"ENV {name}={raw if raw is not None else ''}"
            self.ledger.variables.pop(name, None)
            self.arguments.pop(name, None)
            if value is None:
                why = "its value depends on the base image's environment, or a build's"
                automatic = "fairlead puts [python] and [mpi] on PATH itself"
                whole = lose(where, why, automatic if name == "PATH" else "[env]", shown)
                continue
            self.ledger.variables[name] = value
            if why := self.ledger.add_env(name, value):
                whole = lose(where, why, "nothing", shown)
        return whole

    def _label(self, instruction: Instruction) -> bool:
        where, lose = instruction.where, self.ledger.lose
        pairs = list(_pairs(instruction.value.text, self.escape))
        whole = bool(pairs) or lose(where, "it names no label", "[labels]")
        for key, raw in pairs:
            name, value = self._value(key), None if raw is None else self._value(raw)
            why = "its value is known only while building"
            if name is not None and value is not None:
                why = self.ledger.add_label(name, value)
            if why:
                whole = lose(where, why, "[labels]", f"LABEL {key}={raw or ''}")
        return whole

    def _maintainer(self, instruction: Instruction) -> bool:
        why = self.ledger.add_label("org.opencontainers.image.authors", instruction.value.text)
        return not why or self.ledger.lose(instruction.where, why, "[labels]")

    def _workdir(self, instruction: Instruction) -> bool:
        where, lose = instruction.where, self.ledger.lose
        folder = self._value(instruction.value.text)
        if folder is None:
            why = "where it is, is known only while building"
            return lose(where, why, "`fairlead run --workdir`")
        self.interpreter.folder = resolved(self.interpreter.folder, folder)
        if self.interpreter.folder == "/":
            return True
        why = "programs start in the folder that they are called from"
        return lose(where, why, f"`fairlead run --workdir {self.interpreter.folder}`")

    def _user(self, instruction: Instruction) -> bool:
        if instruction.value.text in ("root", "0", "root:root", "0:0"):
            return True
        why = "engines of HPC sites run as the calling user"
        return self.ledger.lose(instruction.where, why, "nothing")

    def _shell(self, instruction: Instruction) -> bool:
        program = _json_list(instruction.value.text)
        self.shell = bool(program) and program is not None and _is_shell(program[0])
        why = "it is not a shell that is known here"
        return self.shell or self.ledger.lose(instruction.where, why, "nothing")

    def _run(self, instruction: Instruction) -> bool:
        value = instruction.value
        while flag := _FLAG.match(value.text):
            kind = (flag[2] or "").split(",")
            harmless = flag[1] == "network" or (
                flag[1] == "mount" and ("type=cache" in kind or "type=tmpfs" in kind)
            )
            if not harmless:
                why = f"it needs `{flag[0].strip()}`, which only a build has"
                return self._not_packages(instruction, why)
            value = value[flag.end() :]
        if not self.shell:
            return self.ledger.lose(instruction.where, "its shell is not known here", "nothing")
        self.ledger.variables, before = self.variables, self.ledger.variables
        try:
            return self._script(instruction, value)
        finally:
            self.ledger.variables = before

    def _not_packages(self, instruction: Instruction, why: str) -> bool:
        instead = "its packages in packages.apt and packages.pip"
        return self.ledger.lose(instruction.where, why, instead)

    def _script(self, instruction: Instruction, value: Located) -> bool:
        """The commands of a RUN, each accounted for by itself."""
        program = _json_list(value.text)
        if program is not None:
            shell = len(program) == 3 and _is_shell(program[0]) and program[1] == "-c"
            text = program[2] if shell else " ".join(_shell_quoted(word) for word in program)
            self.interpreter.script(_at(text, instruction.where))
        elif instruction.bodies:
            return self._script_below(instruction, value)
        else:
            self.interpreter.script(value)
        return False

    def _script_below(self, instruction: Instruction, value: Located) -> bool:
        """A RUN whose script is a here-document."""
        where = instruction.where
        if len(instruction.bodies) != 1 or not _HEREDOC.fullmatch(value.text.strip()):
            why = "its input is written out below it"
            return self.ledger.lose(where, why, "the same as single commands")
        body = instruction.bodies[0].text
        first = body.text.split("\n", 1)[0]
        if first.startswith("#!") and first.split("/")[-1].split()[:1] not in (
            [s] for s in _SHELLS
        ):
            return self._not_packages(instruction, "it is a program of another language")
        self.interpreter.script(body)
        self.ledger.carry(where[: len(where.text.split("\n", 1)[0])])
        self.ledger.carried.add((self.ledger.file, where.last))
        return False

    def _copy(self, instruction: Instruction) -> bool:
        return self._lay(instruction, unpacks=False)

    def _add(self, instruction: Instruction) -> bool:
        return self._lay(instruction, unpacks=True)

    def _lay(self, instruction: Instruction, *, unpacks: bool) -> bool:
        """COPY, or ADD, which ``unpacks`` archives and downloads."""
        lose = self.ledger.lose
        whole, value = True, instruction.value
        executable: bool | None = None
        while flag := _FLAG.match(value.text):
            value = value[flag.end() :]
            if flag[1] == "from":
                why = "it comes out of another stage or image"
                return lose(
                    instruction.where, why, "a [[source]] with `run`, or the file in [files]"
                )
            if why := _bad_copy_flag(flag[1], flag[2] or ""):
                whole = lose(instruction.where, why, "nothing", flag[0].strip())
            elif flag[1] == "chmod":
                executable = flag[2].endswith("755")
        if instruction.bodies:
            return self._write(instruction, value, executable is True) and whole
        given = _json_list(value.text) or words(value.text, self.escape)
        paths = [path for raw in given if (path := self._value(raw)) is not None]
        if len(paths) < 2 or len(paths) != len(given):
            return lose(instruction.where, "what it copies is known only while building", _FILES)
        self.context.executable = executable
        return self._lay_sources(instruction, paths[:-1], paths[-1], unpacks) and whole

    def _lay_sources(
        self, instruction: Instruction, sources: list[str], target: str, unpacks: bool
    ) -> bool:
        whole, lose = True, self.ledger.lose
        place = resolved(self.interpreter.folder, target)
        into = target.endswith(("/", "/.")) or target == "." or len(sources) > 1
        for source in sources:
            if unpacks and re.match(r"[a-z+]+://|git@", source):
                why, instead = (
                    "it is downloaded while building",
                    "a [[source]] with `url` and `sha256`",
                )
                whole = lose(instruction.where, why, instead, source)
            elif unpacks and re.search(r"\.(tar|tgz|tbz2?|txz)(\.\w+)?$", source):
                whole = lose(instruction.where, "ADD unpacks it", "its files in [files]", source)
            else:
                for text, why in self.context.copy(source, place, into=into, docker=True):
                    whole = lose(instruction.where, why, _FILES, text)
        return whole

    def _write(self, instruction: Instruction, value: Located, executable: bool) -> bool:
        """A here-document that becomes a file."""
        lose, instead = self.ledger.lose, "that text as a file, in [files]"
        given = value.text.split()
        match = _HEREDOC.fullmatch(given[0]) if len(given) == 2 else None
        target = self._value(given[1]) if len(given) == 2 else None
        if match is None or target is None or len(instruction.bodies) != 1:
            return lose(instruction.where, "its text stands in the file itself", instead)
        (body,) = instruction.bodies
        if body.expanded and re.search(r"[$\\]", body.text.text):
            return lose(
                instruction.where, "variables are put into its text while building", instead
            )
        place = resolved(self.interpreter.folder, target)
        place = f"{place}/{body.delimiter}" if target.endswith("/") else place
        why = self.context.write(place, body.text.text, executable)
        return not why or lose(instruction.where, why, _FILES)


def _bad_copy_flag(name: str, value: str) -> str:
    """Why a flag of COPY cannot be carried; empty when it can."""
    if name == "chown" and value not in ("0", "root", "0:0", "root:root"):
        return "all files of an image belong to root"
    if name in ("link", "chown") or (name == "chmod" and value.lstrip("0") in ("644", "755")):
        return ""
    return "[files] knows no such thing"


def _is_shell(program: str) -> bool:
    return program.rsplit("/", 1)[-1] in _SHELLS


# --- words of instructions --------------------------------------------------------------------

_VARIABLE = re.compile(
    r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)(?:(:?[-+])([^{}$]*))?\})"
)


def words(text: str, escape: str) -> list[str]:
    """Words as they are written, cut at blanks outside of quotes."""
    e = re.escape(escape)
    escaped, quoted = rf"{e}(?:.|$)", rf"\"(?:[^\"{e}]|{e}(?:.|$))*(?:\"|$)|'[^']*(?:'|$)"
    return re.findall(rf"(?:[^\s\"'{e}]|{escaped}|{quoted})+", text, re.DOTALL)


def value_of(raw: str, variables: Mapping[str, str], escape: str) -> str | None:
    """A word without its quotes, its variables replaced; None when one is not known here."""
    out, quote, at = [], "", 0
    while at < len(raw):
        char = raw[at]
        if char == escape and quote != "'" and at + 1 < len(raw):
            follows = raw[at + 1]
            out.append(char + follows if quote and follows not in f'"${escape}' else follows)
            at += 2
        elif char == "$" and quote != "'":
            match = _VARIABLE.match(raw, at)
            value = variables.get(match[1] or match[2]) if match else None
            if match is None or value is None:
                # Also with a default: the base image may set it.
                return None
            out.append(_with_default(value, match[3] or "", match[4] or ""))
            at = match.end()
        else:
            if char == quote:
                quote = ""
            elif not quote and char in "\"'":
                quote = char
            else:
                out.append(char)
            at += 1
    return "".join(out)


def _with_default(value: str, operator: str, other: str) -> str:
    """A variable that is set, in ``${NAME OPERATOR other}``."""
    if operator in ("+", ":+"):
        return other if value or operator == "+" else ""
    return other if operator == ":-" and not value else value


def _pairs(text: str, escape: str) -> Iterator[tuple[str, str | None]]:
    """``NAME=value`` pairs as written, or the old ``NAME value``; a name alone has no value."""
    head = re.match(r"([^\s=\"']+)\s+(.*)$", text, re.DOTALL)
    if head and "=" not in head[1]:
        yield head[1], head[2].strip()
        return
    for word in words(text, escape):
        pair = re.fullmatch(r"""((?:"[^"]*"|'[^']*'|[^="'])*)=(.*)""", word, re.DOTALL)
        yield (pair[1], pair[2]) if pair else (word, None)


def _json_list(text: str) -> list[str] | None:
    """The exec form: a JSON list of strings; None for anything else."""
    try:
        value: Any = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, list) and all(isinstance(v, str) for v in value) else None


def _shell_quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def _at(text: str, where: Located) -> Located:
    """Text that was decoded, put on the first of the lines it came from."""
    return Located(text, (where.first,) * len(text))
