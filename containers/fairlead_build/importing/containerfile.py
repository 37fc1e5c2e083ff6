"""Instructions of a Containerfile, each with its lines.

Source: Dockerfile reference, docs.docker.com/reference/dockerfile: format, escape, here-documents,
environment replacement, and each instruction. Read by hand: dockerfile-parse keeps
neither here-documents nor quotes, and replaces a variable that is unknown here by nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from fairlead.base import bounded_json
from fairlead_build.importing.commands import Interpreter, resolved
from fairlead_build.importing.context import Context
from fairlead_build.importing.ledger import Ledger, env_hint, instead_of
from fairlead_build.importing.located import Located, has_content, of_lines, split_lines

# A whole word of an instruction: BuildKit takes nothing inside of a word for a here-document.
_HEREDOC = re.compile(r"[0-9]*<<(-?)(['\"]?)([A-Za-z0-9_.+-]+)\2")
_FLAG = re.compile(r"--([a-z-]+)(?:=(\S*))?\s*")
_SHELLS = {"sh", "bash", "dash", "ash"}
_FILES = "[files]"
_PACKAGES = "its packages in packages.apt and packages.pip"
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


@dataclass(frozen=True)
class _Body:
    """A here-document; ``expanded`` when variables are replaced in it."""

    delimiter: str
    expanded: bool
    text: Located


@dataclass(frozen=True)
class _Instruction:
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
    bodies: tuple[_Body, ...]
    closed: bool


@dataclass
class _Stage:
    begin: _Instruction
    base: str
    name: str
    instructions: list[_Instruction] = field(default_factory=list)


def read(text: str, ledger: Ledger, folder: Path) -> None:
    """Reads a Containerfile into ``ledger``. Local files are those of ``folder``."""
    reader = _Reader(ledger, folder, _escape(text))
    stages: list[_Stage] = []
    for instruction in _instructions(text, reader.escape):
        if instruction.keyword == "FROM":
            stages.append(reader.begin(instruction))
        elif stages:
            stages[-1].instructions.append(instruction)
        elif instruction.keyword == "ARG":
            reader.at = instruction
            reader.argument(reader.outer)
        else:
            ledger.lose(instruction.where, "it stands before the first FROM", "write it below")
    used = _used(stages)
    for stage in stages:
        if stage not in used:
            why = "it belongs to a stage that the last one does not start from"
            for instruction in (stage.begin, *stage.instructions):
                ledger.lose(instruction.where, why, "what is built there: a [[source]] with `run`")
    for stage in used:
        reader.stage(stage, first=stage is used[0])


def _escape(text: str) -> str:
    """The parser directive `# escape=`; directives stand above everything else."""
    for _, line in split_lines(text):
        match = re.fullmatch(r"\s*#\s*([A-Za-z]+)\s*=\s*(\S+)\s*", line)
        if match is None:
            break
        if match[1].lower() == "escape" and match[2] in ("\\", "`"):
            return match[2]
    return "\\"


def _instructions(text: str, escape: str) -> Iterator[_Instruction]:
    continued = re.compile(re.escape(escape) + r"[ \t]*$")
    rows = iter(split_lines(text))
    for row in rows:
        if not has_content(row[1]):
            continue
        lines: list[tuple[int, str]] = []
        parts: list[tuple[int, str]] = []
        for number, line in chain([row], rows):
            lines.append((number, line))
            if parts and not has_content(line):
                continue  # within an instruction, comments and empty lines are passed over
            parts.append((number, continued.sub("", line)))
            if not continued.search(line):
                break
        whole = of_lines(parts, "").strip()
        keyword = re.split(r"\s", whole.text, maxsplit=1)[0]
        value = whole[len(keyword) :].strip()
        closed, bodies = True, []
        if keyword.upper() in ("RUN", "COPY", "ADD"):
            words = (_HEREDOC.fullmatch(word) for word in _words(value.text, escape))
            for tabs, quote, delimiter in (word.groups() for word in words if word):
                body, ends = _body(rows, lines, delimiter, tabs)
                bodies.append(_Body(delimiter, not quote, body))
                closed = closed and ends
        yield _Instruction(keyword.upper(), of_lines(lines), value, tuple(bodies), closed)


def _body(
    rows: Iterator[tuple[int, str]], lines: list[tuple[int, str]], delimiter: str, tabs: str
) -> tuple[Located, bool]:
    """A here-document, taken from ``rows`` and added to ``lines``; and whether it ends."""
    begin = len(lines)
    for number, line in rows:
        lines.append((number, line.lstrip("\t") if tabs else line))
        if lines[-1][1] == delimiter:
            return of_lines(lines[begin:-1]), True
    return of_lines(lines[begin:]), False


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


class _Reader:
    """Reads the instructions of one stage after another.

    A method `read_NAME` reads the instruction NAME.

    Attributes:
        outer: the arguments above the first FROM.
        at: the instruction that is read.
    """

    at: _Instruction

    def __init__(self, ledger: Ledger, folder: Path, escape: str):
        self.ledger, self.escape = ledger, escape
        self.interpreter, self.context = Interpreter(ledger), Context(folder, ledger, docker=True)
        self.outer: dict[str, str] = {}
        self.arguments: dict[str, str] = {}
        self.shell = True  # whether RUN means a shell that is known here

    def _lose(self, why: str, instead: str, text: str = "") -> None:
        self.ledger.lose(self.at.where, why, instead, text)

    def begin(self, instruction: _Instruction) -> _Stage:
        """The stage that a FROM begins."""
        words = [w for w in instruction.value.text.split() if not w.startswith("--")]
        base = value_of(words[0], self.outer, self.escape) if words else None
        named = len(words) == 3 and words[1].lower() == "as"
        return _Stage(instruction, base or "", words[2].lower() if named else "")

    def stage(self, stage: _Stage, *, first: bool) -> None:
        """Reads a stage; ``first``: those after it start from it."""
        self.at, self.arguments, self.shell = stage.begin, {}, True
        flags = [w for w in self.at.value.text.split() if w.startswith("--")]
        words = [w for w in self.at.value.text.split() if not w.startswith("--")]
        if len(words) not in (1, 3) or (len(words) == 3 and words[1].lower() != "as"):
            self._lose("FROM takes an image, and a name behind AS", "check its lines")
        for flag in flags:
            self._lose("a recipe is built on a machine of its own kind", "nothing", flag)
        if first:
            self.ledger.set_base(self.at.where, stage.base)
        self.ledger.account(self.at.where)
        for self.at in stage.instructions:
            reader = getattr(self, f"read_{self.at.keyword.lower()}", None)
            if self.at.keyword in _UNUSED:
                self._unused()
            elif not self.at.closed:
                self._lose("its here-document never ends", "end it")
            elif reader is None or not self.at.value:
                why = "no such instruction is known" if reader is None else "it says nothing"
                self._lose(why, "check its spelling")
            else:
                reader(self.at.value.text)
            if self.at.keyword != "RUN":  # whose commands are accounted for one by one
                self.ledger.account(self.at.where)

    @property
    def variables(self) -> dict[str, str]:
        return {**self.arguments, **self.ledger.variables}

    def _value(self, raw: str) -> str | None:
        return value_of(raw, self.variables, self.escape)

    def _unused(self) -> None:
        value = self.at.value.text
        exec_form = _json_list(value)
        idle = value.upper() == "NONE" or exec_form == []
        if self.at.keyword == "CMD":
            program = exec_form if exec_form is not None else value.split()
            idle = idle or (len(program) == 1 and _is_shell(program[0]))
        if not idle:
            self._lose(*_UNUSED[self.at.keyword])

    def argument(self, arguments: dict[str, str]) -> None:
        """ARG: its default is put where it is used; without one, only a build could know it."""
        for word in _words(self.at.value.text, self.escape):
            name, equals, raw = word.partition("=")
            value = value_of(raw, arguments, self.escape) if equals else None
            if value is not None:
                arguments[name] = value
            elif equals or name not in arguments:
                arguments.pop(name, None)
                why = "a recipe has no arguments, and this one has no default"
                self._lose(why, "write its value where it is used", f"ARG {word}")
        if self.at.value:
            self.ledger.account(self.at.where)

    def read_arg(self, value: str) -> None:
        self.arguments |= {name: self.outer[name] for name in value.split() if name in self.outer}
        self.argument(self.arguments)

    def read_env(self, text: str) -> None:
        pairs = list(_pairs(text, self.escape))
        if not pairs:
            self._lose("it names no variable", "[env]")
        before = self.variables  # what all values of one instruction see
        for key, raw in pairs:
            name = value_of(key, {}, self.escape) or key
            value = None if raw is None else value_of(raw, before, self.escape)
            shown = f"ENV {name}={raw if raw is not None else ''}"
            self.ledger.variables.pop(name, None)
            self.arguments.pop(name, None)
            if value is None:
                why = "its value depends on the base image's environment, or a build's"
                self._lose(why, env_hint(name), shown)
                continue
            self.ledger.variables[name] = value
            if why := self.ledger.add_env(name, value):
                self._lose(why, "nothing", shown)

    def read_label(self, text: str) -> None:
        pairs = list(_pairs(text, self.escape))
        if not pairs:
            self._lose("it names no label", "[labels]")
        for key, raw in pairs:
            name, value = self._value(key), None if raw is None else self._value(raw)
            why = "its value is known only while building"
            if name is not None and value is not None:
                why = self.ledger.add_label(name, value)
            if why:
                self._lose(why, "[labels]", f"LABEL {key}={raw or ''}")

    def read_maintainer(self, text: str) -> None:
        if why := self.ledger.add_label("org.opencontainers.image.authors", text):
            self._lose(why, "[labels]")

    def read_workdir(self, text: str) -> None:
        folder = self._value(text)
        if folder is None:
            why = "where it is, is known only while building"
            return self._lose(why, "`fairlead run --workdir`")
        folder = self.interpreter.folder = resolved(self.interpreter.folder, folder)
        self.ledger.folders.add(folder)
        if folder != "/":
            why = "programs start in the folder that they are called from"
            self._lose(why, f"`fairlead run --workdir {folder}`")

    def read_user(self, text: str) -> None:
        if text not in ("root", "0", "root:root", "0:0"):
            self._lose("engines of HPC sites run as the calling user", "nothing")

    def read_shell(self, text: str) -> None:
        program = _json_list(text)
        self.shell = bool(program and _is_shell(program[0]))
        if not self.shell:
            self._lose("it is not a shell that is known here", "nothing")

    def read_run(self, _: str) -> None:
        value = self.at.value
        self.ledger.mounts = {}
        while flag := _FLAG.match(value.text):
            mount = flag[1] == "mount" and self._mount(flag[2] or "")
            if flag[1] != "network" and not mount:
                return self._lose(
                    f"it needs `{flag[0].strip()}`, which only a build has", _PACKAGES
                )
            self.ledger.account(value[: flag.end()])
            value = value[flag.end() :]
        if not self.shell:
            return self._lose("its shell is not known here", "nothing")
        self.ledger.variables, before = self.variables, self.ledger.variables
        self._script(value)
        self.ledger.variables = before

    def _mount(self, text: str) -> bool:
        """Whether what `RUN --mount` mounts is known here, or cannot be seen in an image."""
        given = dict(part.partition("=")[::2] for part in text.split(","))
        kind = given.get("type", "bind")
        if kind != "bind" or "from" in given:
            return kind in ("cache", "tmpfs")
        source = self._value(given.get("source", given.get("src", ".")))
        targets = (given[key] for key in ("target", "dst", "destination") if key in given)
        target = self._value(next(targets, ""))
        files = self.context.mounted(source) if source else None
        if not target or files is None:
            return False
        self.ledger.mounts[resolved(self.interpreter.folder, target)] = files
        return True

    def _script(self, value: Located) -> None:
        """The commands of a RUN, each accounted for by itself."""
        program = _json_list(value.text)
        if program is not None:
            shell = len(program) == 3 and _is_shell(program[0]) and program[1] == "-c"
            quoted = ("'" + word.replace("'", "'\\''") + "'" for word in program)
            text = program[2] if shell else " ".join(quoted)
            # It was decoded, so all of it is put on the first of its lines.
            value = Located(text, (self.at.where.first,) * len(text))
        elif self.at.bodies:
            if len(self.at.bodies) != 1 or not _HEREDOC.fullmatch(value.text.strip()):
                why = "its input is written out below it"
                return self._lose(why, "the same as single commands")
            where, value = self.at.where, self.at.bodies[0].text
            first = value.text.partition("\n")[0]
            if first.startswith("#!") and not _is_shell(" ".join(first.split("/")[-1].split()[:1])):
                return self._lose("it is a program of another language", _PACKAGES)
            self.ledger.account(where[: where.text.index("\n")])
            self.ledger.account(where[-1:])
        self.interpreter.script(value)

    def read_add(self, text: str) -> None:
        """As COPY, but archives are unpacked and addresses downloaded."""
        self.read_copy(text, unpacks=True)

    def read_copy(self, text: str, *, unpacks: bool = False) -> None:
        executable: bool | None = None
        while flag := _FLAG.match(text):
            text = text[flag.end() :]
            if flag[1] == "from":
                why = "it comes out of another stage or image"
                return self._lose(why, "a [[source]] with `run`, or the file in [files]")
            if flag[1] in ("exclude", "parents"):  # they decide what lands where
                return self._lose(f"[files] has nothing like --{flag[1]}", _FILES)
            if why := _bad_copy_flag(flag[1], flag[2] or ""):
                self._lose(why, "nothing", flag[0].strip())
            elif flag[1] == "chmod":
                executable = flag[2].endswith("755")
        if self.at.bodies:
            return self._write(text.split(), executable is True)
        given = _json_list(text) or _words(text, self.escape)
        paths = [path for raw in given if (path := self._value(raw)) is not None]
        if len(paths) < 2 or len(paths) != len(given):
            return self._lose("what it copies is known only while building", _FILES)
        self.context.executable = executable
        self._lay(paths[:-1], paths[-1], unpacks)

    def _lay(self, sources: list[str], target: str, unpacks: bool) -> None:
        place = resolved(self.interpreter.folder, target)
        into = target.endswith(("/", "/.")) or target == "." or len(sources) > 1
        for source in sources:
            if unpacks and re.match(r"[a-z+]+://|git@", source):
                instead = "a [[source]] with `url` and `sha256`"
                self._lose("it is downloaded while building", instead, source)
            elif unpacks and self.context.holds_archive(source):
                self._lose("ADD unpacks it", "its files in [files]", source)
            else:
                for part, why in self.context.copy(source, place, into=into):
                    self._lose(why, instead_of(part), part)

    def _write(self, given: list[str], executable: bool) -> None:
        """A here-document that becomes a file."""
        instead = "that text as a file, in [files]"
        match = _HEREDOC.fullmatch(given[0]) if len(given) == 2 else None
        target = self._value(given[1]) if len(given) == 2 else None
        if match is None or target is None or len(self.at.bodies) != 1:
            return self._lose("its text stands in the file itself", instead)
        (body,) = self.at.bodies
        if body.expanded and re.search(r"[$\\]", body.text.text):
            return self._lose("variables are put into its text while building", instead)
        place = resolved(self.interpreter.folder, target)
        place = f"{place}/{body.delimiter}" if target.endswith("/") else place
        if why := self.context.write(place, body.text.text, executable):
            self._lose(why, instead_of(place))


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


def _words(text: str, escape: str) -> list[str]:
    """Words as they are written, cut at blanks outside of quotes."""
    e = re.escape(escape)
    escaped, quoted = rf"{e}(?:.|$)", rf"\"(?:[^\"{e}]|{e}(?:.|$))*(?:\"|$)|'[^']*(?:'|$)"
    return re.findall(rf"(?:[^\s\"'{e}]|{escaped}|{quoted})+", text, re.DOTALL)


def value_of(raw: str, variables: Mapping[str, str], escape: str) -> str | None:
    """A word without its quotes, its variables replaced; None when one is not known here."""
    out, quote, at = "", "", 0
    while at < len(raw):
        char = raw[at]
        if char == escape and quote != "'" and at + 1 < len(raw):
            follows = raw[at + 1]
            out += char + follows if quote and follows not in f'"${escape}' else follows
            at += 2
        elif char == "$" and quote != "'":
            match = _VARIABLE.match(raw, at)
            value = variables.get(match[1] or match[2]) if match else None
            if match is None or value is None:
                return None  # also with a default: the base image may set it
            out += _with_default(value, match[3] or "", match[4] or "")
            at = match.end()
        else:
            if char == quote:
                quote = ""
            elif not quote and char in "\"'":
                quote = char
            else:
                out += char
            at += 1
    return out


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
    for word in _words(text, escape):
        pair = re.fullmatch(r"""((?:"[^"]*"|'[^']*'|[^="'])*)=(.*)""", word, re.DOTALL)
        yield (pair[1], pair[2]) if pair else (word, None)


def _json_list(text: str) -> list[str] | None:
    """The exec form: a JSON list of strings; None for anything else."""
    try:
        value: Any = bounded_json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, list) and all(isinstance(v, str) for v in value) else None
