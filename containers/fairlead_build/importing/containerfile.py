"""Instructions of a Containerfile, each with its lines.

Source: Dockerfile reference, docs.docker.com/reference/dockerfile: format, escape, here-documents,
environment replacement, and each instruction. spython's own reader of these files merges stages and
drops here-documents, `--mount` and quotes, so it is not used here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead_build.importing import images
from fairlead_build.importing.commands import Interpreter, resolved
from fairlead_build.importing.context import Context
from fairlead_build.importing.ledger import Ledger
from fairlead_build.importing.located import Located, of_lines, split_lines

_HEREDOC = re.compile(r"<<(-?)\s*(['\"]?)([A-Za-z0-9_.]+)\2")
_SHELLS = {"sh", "bash", "dash", "ash"}
_UNUSED = {
    "EXPOSE": ("engines of HPC sites share the host's network", "nothing"),
    "VOLUME": ("an image is read-only, and folders of the host are bound", "`fairlead run --bind`"),
    "STOPSIGNAL": ("nothing of an image runs as a service", "nothing"),
    "HEALTHCHECK": ("nothing of an image runs as a service", "a `verify` beside the recipe"),
    "ONBUILD": (
        "a recipe is extended by `extends`",
        "its packages in the recipe that extends this",
    ),
    "ENTRYPOINT": (
        "an image has no program of its own",
        "the command behind `fairlead run NAME --`",
    ),
    "CMD": ("an image has no program of its own", "the command behind `fairlead run NAME --`"),
}


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes:
        where: all of its lines.
        value: what follows the keyword, comments and line ends taken out.
        bodies: its here-documents: delimiter, whether variables are replaced, text.
        closed: all of them end.
    """

    keyword: str
    where: Located
    value: Located
    bodies: tuple[tuple[str, bool, Located], ...] = ()
    closed: bool = True


@dataclass
class _Stage:
    name: str
    base: str
    begin: Instruction
    instructions: list[Instruction]


def read(text: str, ledger: Ledger, folder: Path) -> None:
    """Reads a Containerfile into ``ledger``. Local files are those of ``folder``."""
    escape = _escape(text)
    arguments: dict[str, str] = {}
    stages: list[_Stage] = []
    before: list[Instruction] = []
    for instruction in instructions(text, escape):
        if instruction.keyword == "FROM":
            stages.append(_stage(instruction, arguments, escape))
        elif stages:
            stages[-1].instructions.append(instruction)
        elif instruction.keyword == "ARG":
            _argument(instruction, arguments, ledger, escape)
        else:
            before.append(instruction)
    for instruction in before:
        ledger.lose(instruction.where, "it stands before the first FROM", "write it below")
    if not stages:
        return
    chain = _chain(stages)
    for stage in stages:
        if stage not in chain:
            why = "it belongs to a stage that the last one does not start from"
            for instruction in (stage.begin, *stage.instructions):
                ledger.lose(instruction.where, why, "what is built there: a [[source]] with `run`")
    interpreter = Interpreter(ledger)
    context = Context(folder, ledger)
    for number, stage in enumerate(chain):
        _from(stage, first=number == 0, ledger=ledger, escape=escape)
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
        if not rows[at][1].strip() or rows[at][1].lstrip().startswith("#"):
            at += 1
            continue
        parts: list[tuple[int, str]] = []
        begin = at
        while at < len(rows):
            number, line = rows[at]
            at += 1
            if parts and (not line.strip() or line.lstrip().startswith("#")):
                continue  # within an instruction, comments and empty lines are passed over
            goes_on = re.search(re.escape(escape) + r"[ \t]*$", line)
            parts.append((number, line[: goes_on.start()] if goes_on else line))
            if not goes_on:
                break
        whole = of_lines(parts, "").strip()
        keyword = re.split(r"\s", whole.text, maxsplit=1)[0]
        value = whole[len(keyword) :].strip()
        bodies, closed = [], True
        if keyword.upper() in ("RUN", "COPY", "ADD"):
            for match in _HEREDOC.finditer(value.text):
                if value.text[max(0, match.start() - 1) : match.start()] == "<":
                    continue  # <<< is a here-string
                found, at, ends = _body(rows, at, match[3], bool(match[1]))
                closed = closed and ends
                bodies.append((match[3], not match[2], found))
        yield Instruction(keyword.upper(), of_lines(rows[begin:at]), value, tuple(bodies), closed)


def _body(
    rows: list[tuple[int, str]], at: int, delimiter: str, tabs: bool
) -> tuple[Located, int, bool]:
    """A here-document that begins at ``at``: its text, where it ends, and whether it does."""
    body: list[tuple[int, str]] = []
    while at < len(rows):
        number, line = rows[at]
        at += 1
        line = line.lstrip("\t") if tabs else line
        if line == delimiter:
            return of_lines(body), at, True
        body.append((number, line))
    return of_lines(body), at, False


def _stage(instruction: Instruction, arguments: Mapping[str, str], escape: str) -> _Stage:
    words = [w for w in instruction.value.text.split() if not w.startswith("--")]
    base = expand(words[0], arguments, escape) if words else None
    name = words[2].lower() if len(words) == 3 and words[1].lower() == "as" else ""
    return _Stage(name, base or "", instruction, [])


def _chain(stages: list[_Stage]) -> list[_Stage]:
    """The stages that the last one consists of, the first of them first."""
    chain = [stages[-1]]
    while True:
        earlier = stages[: stages.index(chain[0])]
        below = [s for s in earlier if s.name and s.name == chain[0].base.lower()]
        if not below:
            return chain
        chain.insert(0, below[-1])


def _from(stage: _Stage, *, first: bool, ledger: Ledger, escape: str) -> None:
    where = stage.begin.where
    whole = True
    for word in stage.begin.value.text.split():
        if word.startswith("--"):
            ledger.lose(
                where, "a recipe is built on a machine of its own kind", "nothing", text=word
            )
            whole = False
    if first:
        whole = images.set_base(ledger, where, stage.base) and whole
    if whole:
        ledger.carry(where)


def _argument(
    instruction: Instruction, arguments: dict[str, str], ledger: Ledger, escape: str
) -> None:
    """ARG: its default is put where it is used; without one, only a build could tell it."""
    whole = bool(instruction.value)
    for word in _copy_words(instruction.value.text, escape, keep=True):
        name, equals, raw = word.partition("=")
        value = expand(_unquoted(raw, escape), arguments, escape) if equals else None
        if value is not None:
            arguments[name] = value
        elif equals or name not in arguments:
            arguments.pop(name, None)
            ledger.lose(
                instruction.where, "a recipe has no arguments, and this one has no default",
                "write its value where it is used", text=f"ARG {word}",
            )  # fmt: skip
            whole = False
    if whole:
        ledger.carry(instruction.where)


class _Reader:
    """Reads the instructions of one stage."""

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
            reader = getattr(self, f"_{instruction.keyword.lower()}", None)
            if instruction.keyword in _UNUSED:
                self._unused(instruction)
            elif not instruction.closed:
                self._lose(instruction, "its here-document never ends", "end it")
            elif reader is None or not instruction.value:
                what = "no such instruction is known" if reader is None else "it says nothing"
                self.ledger.lose(instruction.where, what, "check its spelling")
            elif reader(instruction):
                self.ledger.carry(instruction.where)

    @property
    def variables(self) -> dict[str, str]:
        return {**self.arguments, **self.ledger.variables}

    def _expand(self, text: str) -> str | None:
        return expand(text, self.variables, self.escape)

    def _lose(self, instruction: Instruction, why: str, instead: str, text: str = "") -> bool:
        self.ledger.lose(instruction.where, why, instead, text=text)
        return False

    def _unused(self, instruction: Instruction) -> None:
        value = instruction.value.text
        words = _json_list(value)
        idle = value.upper() == "NONE" or words == []
        if instruction.keyword == "CMD":
            program = words if words is not None else value.split()
            idle = idle or (len(program) == 1 and program[0].rsplit("/", 1)[-1] in _SHELLS)
        if idle:
            self.ledger.carry(instruction.where)
        else:
            self._lose(instruction, *_UNUSED[instruction.keyword])

    def _arg(self, instruction: Instruction) -> bool:
        for name in instruction.value.text.split():
            if name in self.outer:
                self.arguments[name] = self.outer[name]
        _argument(instruction, self.arguments, self.ledger, self.escape)
        return False  # it has done its own account

    def _env(self, instruction: Instruction) -> bool:
        pairs = list(_pairs(instruction.value.text, self.escape))
        whole = bool(pairs) or self._lose(instruction, "it names no variable", "[env]")
        told = self.variables  # all values of one instruction see the environment before it
        for name, text in pairs:
            value = expand(text, told, self.escape)
            self.ledger.variables.pop(name, None)
            self.arguments.pop(name, None)
            if value is None:
                instead = (
                    "fairlead puts [python] and [mpi] on PATH itself" if name == "PATH" else "[env]"
                )
                whole = self._lose(
                    instruction, "its value depends on the base image's environment, or a build's",
                    instead, f"ENV {name}={text}",
                )  # fmt: skip
                continue
            self.ledger.variables[name] = value
            if why := self.ledger.add_env(name, value):
                whole = self._lose(instruction, why, "nothing", f"ENV {name}={text}")
        return whole

    def _label(self, instruction: Instruction) -> bool:
        pairs = list(_pairs(instruction.value.text, self.escape))
        whole = bool(pairs) or self._lose(instruction, "it names no label", "[labels]")
        for key, text in pairs:
            value = self._expand(text)
            name = self._expand(key)
            why = "its value is known only while building" if value is None or name is None else ""
            why = why or self.ledger.add_label(name or "", value or "")
            if why:
                whole = self._lose(instruction, why, "[labels]", f"LABEL {key}={text}")
        return whole

    def _maintainer(self, instruction: Instruction) -> bool:
        why = self.ledger.add_label("org.opencontainers.image.authors", instruction.value.text)
        return not why or self._lose(instruction, why, "[labels]")

    def _workdir(self, instruction: Instruction) -> bool:
        folder = self._expand(_unquoted(instruction.value.text, self.escape))
        if folder is None:
            return self._lose(instruction, "where it is, is known only while building",
                              "`fairlead run --workdir`")  # fmt: skip
        self.interpreter.folder = resolved(self.interpreter.folder, folder)
        if self.interpreter.folder == "/":
            return True
        return self._lose(instruction, "programs start in the folder that they are called from",
                          f"`fairlead run --workdir {self.interpreter.folder}`")  # fmt: skip

    def _user(self, instruction: Instruction) -> bool:
        if instruction.value.text in ("root", "0", "root:root", "0:0"):
            return True
        return self._lose(instruction, "engines of HPC sites run as whoever calls them", "nothing")

    def _shell(self, instruction: Instruction) -> bool:
        words = _json_list(instruction.value.text)
        self.shell = bool(words) and words is not None and words[0].rsplit("/", 1)[-1] in _SHELLS
        return self.shell or self._lose(
            instruction, "it is not a shell that is known here", "nothing"
        )

    def _run(self, instruction: Instruction) -> bool:
        value = instruction.value
        while flag := re.match(r"--([a-z]+)(?:=(\S*))?\s*", value.text):
            kind = (flag[2] or "").split(",")
            harmless = flag[1] == "network" or (
                flag[1] == "mount" and ("type=cache" in kind or "type=tmpfs" in kind)
            )
            if not harmless:
                return self._lose(instruction, f"it needs `{flag[0].strip()}`, which only a build has",
                                  "its packages in packages.apt and packages.pip")  # fmt: skip
            value = value[flag.end() :]
        if not self.shell:
            return self._lose(instruction, "its shell is not known here", "nothing")
        self.ledger.variables, kept = self.variables, self.ledger.variables
        try:
            return self._script(instruction, value)
        finally:
            self.ledger.variables = kept

    def _script(self, instruction: Instruction, value: Located) -> bool:
        words = _json_list(value.text)
        if words is not None:
            if len(words) == 3 and words[0].rsplit("/", 1)[-1] in _SHELLS and words[1] == "-c":
                text = words[2]
            else:
                text = " ".join(_shell_quoted(word) for word in words)
            self.interpreter.script(_at(text, instruction.where))
        elif instruction.bodies:
            if len(instruction.bodies) != 1 or not _HEREDOC.fullmatch(value.text.strip()):
                return self._lose(instruction, "its input is written out below it",
                                  "the same as single commands")  # fmt: skip
            body = instruction.bodies[0][2]
            first = body.text.split("\n", 1)[0]
            if first.startswith("#!") and first.split("/")[-1].split()[:1] not in (
                [s] for s in _SHELLS
            ):
                return self._lose(instruction, "it is a program of another language",
                                  "its packages in packages.apt and packages.pip")  # fmt: skip
            self.interpreter.script(body)
            edges = instruction.where
            self.ledger.carry(edges[: len(edges.text.split("\n", 1)[0])])
            self.ledger.carried.add((self.ledger.file, edges.last))
            return False
        else:
            self.interpreter.script(value)
        return False  # each command is accounted for by itself

    def _copy(self, instruction: Instruction) -> bool:
        return self._lay(instruction, "COPY")

    def _add(self, instruction: Instruction) -> bool:
        return self._lay(instruction, "ADD")

    def _lay(self, instruction: Instruction, kind: str) -> bool:
        whole, value = True, instruction.value
        executable: bool | None = None
        while flag := re.match(r"--([a-z-]+)(?:=(\S*))?\s*", value.text):
            value = value[flag.end() :]
            if flag[1] == "from":
                return self._lose(instruction, "it comes out of another stage or image",
                                  "a [[source]] with `run`, or the file in [files]")  # fmt: skip
            if flag[1] not in ("link", "chown", "chmod") or (
                flag[1] == "chmod" and (flag[2] or "").lstrip("0") not in ("644", "755")
            ):
                whole = self._lose(
                    instruction, "[files] knows no such thing", "nothing", flag[0].strip()
                )
            elif flag[1] == "chown" and flag[2] not in ("0", "root", "0:0", "root:root"):
                whole = self._lose(
                    instruction, "all files of an image belong to root", "nothing", flag[0].strip()
                )
            elif flag[1] == "chmod":
                executable = flag[2].endswith("755")
        if instruction.bodies:
            return self._write(instruction, value, executable is True) and whole
        words = _json_list(value.text)
        words = words if words is not None else _copy_words(value.text, self.escape)
        expanded = [self._expand(w) for w in words]
        known = [w for w in expanded if w is not None]
        if len(known) < 2 or len(known) != len(words):
            return self._lose(instruction, "what it copies is known only while building", "[files]")
        *sources, target = known
        for source in sources:
            if kind == "ADD" and re.match(r"[a-z+]+://|git@", source):
                whole = self._lose(instruction, "it is downloaded while building",
                                   "a [[source]] with `url` and `sha256`", source)  # fmt: skip
                continue
            archive = kind == "ADD" and re.search(r"\.(tar|tgz|tbz2?|txz)(\.\w+)?$", source)
            if archive:
                whole = self._lose(instruction, "ADD unpacks it", "its files in [files]", source)
                continue
            place = resolved(self.interpreter.folder, target)
            into = target.endswith(("/", "/.")) or target == "." or len(sources) > 1
            for text, why in self.context.copy(
                source, place, into=into, docker=True, executable=executable
            ):
                whole = self._lose(instruction, why, "[files]", text)
        return whole

    def _write(self, instruction: Instruction, value: Located, executable: bool) -> bool:
        """A here-document that becomes a file."""
        words = value.text.split()
        match = _HEREDOC.fullmatch(words[0]) if len(words) == 2 else None
        target = self._expand(words[1]) if len(words) == 2 else None
        if match is None or target is None or len(instruction.bodies) != 1:
            return self._lose(instruction, "its text stands in the file itself",
                              "that text as a file, in [files]")  # fmt: skip
        name, replaced, body = instruction.bodies[0]
        if replaced and re.search(r"[$\\]", body.text):
            return self._lose(instruction, "variables are put into its text while building",
                              "that text as a file, in [files]")  # fmt: skip
        place = resolved(self.interpreter.folder, target)
        place = f"{place}/{name}" if target.endswith("/") else place
        if why := self.context.write(place, body.text, executable):
            return self._lose(instruction, why, "[files]")
        return True


# --- words of instructions --------------------------------------------------------------------

_VARIABLE = re.compile(
    r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)(?:(:?[-+])([^{}$]*))?\})"
)


def expand(text: str, variables: Mapping[str, str], escape: str) -> str | None:
    """``text`` with its variables replaced; None when one is not known here."""
    out, at, sure = [], 0, True
    while at < len(text):
        if text[at] == escape and text[at + 1 : at + 2] == "$":
            out.append("$")
            at += 2
        elif match := _VARIABLE.match(text, at):
            name, operator, other = match[1] or match[2], match[3] or "", match[4] or ""
            value = variables.get(name)
            if operator.endswith("-") and (value is None or (operator == ":-" and not value)):
                # The base image may set it: only an argument of the file is certainly unset.
                sure = sure and value is not None
                out.append(other)
            elif operator.endswith("+"):
                sure = sure and value is not None
                out.append(other if value or (value is not None and operator == "+") else "")
            else:
                sure = sure and value is not None
                out.append(value or "")
            at = match.end()
        else:
            sure = sure and text[at] != "$"
            out.append(text[at])
            at += 1
    return "".join(out) if sure else None


def _pairs(text: str, escape: str) -> Iterator[tuple[str, str]]:
    """``NAME=value`` pairs, or the old ``NAME value``; quotes taken off, variables still in."""
    head = re.match(r"([^\s=\"']+)\s+(.*)$", text, re.DOTALL)
    if head and "=" not in head[1]:
        yield head[1], _unquoted(head[2].strip(), escape)
        return
    for word in _copy_words(text, escape, keep=True):
        name, equals, value = _split_pair(word)
        if equals:
            yield _unquoted(name, escape), _unquoted(value, escape)
        else:
            yield _unquoted(name, escape), f"${{{_unquoted(name, escape)}}}"  # no value at all


def _split_pair(word: str) -> tuple[str, str, str]:
    match = re.match(r"(\"[^\"]*\"|'[^']*'|[^=])*?(=|$)", word, re.DOTALL)
    end = match.end() if match else len(word)
    return (word[: end - 1], "=", word[end:]) if word[end - 1 : end] == "=" else (word, "", "")


def _copy_words(text: str, escape: str, keep: bool = False) -> list[str]:
    """Words, quotes considered; taken off unless ``keep``."""
    words, word, quote, at, open_ = [], "", "", 0, False
    while at < len(text):
        char = text[at]
        if char == escape and quote != "'" and at + 1 < len(text):
            word += text[at : at + 2]
            open_, at = True, at + 2
            continue
        if quote:
            quote = "" if char == quote else quote
            word += char
        elif char in "\"'":
            quote, open_ = char, True
            word += char
        elif char.isspace():
            if open_:
                words.append(word)
            word, open_ = "", False
        else:
            word, open_ = word + char, True
        at += 1
    if open_:
        words.append(word)
    return words if keep else [_unquoted(w, escape) for w in words]


def _unquoted(text: str, escape: str) -> str:
    """Without quotes. What single quotes or an escape protect from replacement stays escaped."""
    out, quote, at = [], "", 0
    while at < len(text):
        char = text[at]
        if char == escape and quote != "'" and at + 1 < len(text):
            follows = text[at + 1]
            if follows == "$":
                out.append(char + follows)
            else:
                out.append(char + follows if quote and follows not in f'"{escape}' else follows)
            at += 2
            continue
        if quote:
            if char == quote:
                quote = ""
            elif char == "$" and quote == "'":
                out.append(escape + "$")
            else:
                out.append(char)
        elif char in "\"'":
            quote = char
        else:
            out.append(char)
        at += 1
    return "".join(out)


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
