"""Sections of a Singularity.def, each with its lines.

Stages and sections are cut here, as Apptainer cuts them (pkg/build/types/parser of its source);
spython then reads %labels and %files. It reads nothing else: of a whole file it merges stages,
writes `From` in small letters and refuses every bootstrap but docker; of %environment it takes the
lines of an `if` for variables; of %post it strips the lines, which breaks here-documents.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fairlead_build.importing import images
from fairlead_build.importing.commands import Interpreter, resolved
from fairlead_build.importing.context import Context
from fairlead_build.importing.ledger import Ledger
from fairlead_build.importing.located import Located, of_lines, split_lines
from fairlead_build.importing.shell import assignments, commands

Row = tuple[int, str]

_LOST_SECTIONS = {
    "setup": ("it runs on the machine that builds", "what it prepares: [files]"),
    "pre": ("it runs on the machine that builds", "what it prepares: [files]"),
    "runscript": (
        "an image has no program of its own",
        "the command behind `fairlead run NAME --`",
    ),
    "startscript": ("nothing of an image runs as a service", "nothing"),
    "test": (
        "a recipe's test is a program next to it",
        "an executable `verify` next to recipe.toml",
    ),
    "help": ("a recipe has a summary of one line", "summary in [recipe]"),
}
_FILES = "[files]"
_APP = ("an image has one environment and no apps", "an image for each app")
# How the default runscript of the rendered and of most files begins: it only starts a shell.
_IDLE_RUNSCRIPT = re.compile(
    r'(exec\s+)?(/bin/)?(ba|da)?sh(\s+"\$@")?|exec "\$@"|\[ \$# -gt 0 \] .*'
)


@dataclass
class _Section:
    name: str
    argument: str
    title: Row
    rows: list[Row] = field(default_factory=list)

    @property
    def where(self) -> Located:
        return of_lines([self.title, *self.rows])


@dataclass
class _Stage:
    header: dict[str, tuple[str, Located]]
    rows: list[Row]
    sections: list[_Section]

    @property
    def name(self) -> str:
        return self.header.get("stage", ("", None))[0]


def read(text: str, ledger: Ledger, folder: Path) -> None:
    """Reads a definition into ``ledger``. Local files are those of ``folder``."""
    stages = list(_stages(split_lines(text), ledger))
    if not stages:
        return
    for stage in stages[:-1]:
        for row in stage.rows:
            if _says_something(row[1]):
                ledger.lose(
                    of_lines([row]), "it belongs to a stage that is not the last",
                    "what is built there: a [[source]] with `run`",
                )  # fmt: skip
    _Reader(ledger, folder, _arguments(text)).stage(stages[-1])


def _says_something(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _stages(rows: list[Row], ledger: Ledger) -> Iterator[_Stage]:
    begins = [n for n, (_, line) in enumerate(rows) if re.match(r"(?i)bootstrap:", line)]
    for row in rows[: begins[0] if begins else None]:
        if _says_something(row[1]):
            ledger.lose(
                of_lines([row]), "it stands before the first `Bootstrap:`", "write it below"
            )
    for begin, end in zip(begins, [*begins[1:], len(rows)], strict=True):
        yield _stage(rows[begin:end], ledger)


def _stage(rows: list[Row], ledger: Ledger) -> _Stage:
    header: dict[str, tuple[str, Located]] = {}
    sections: list[_Section] = []
    key = ""
    for row in rows:
        line = row[1].strip()
        words = line.split(maxsplit=1)
        if words and words[0].startswith("%"):
            name = words[0].lstrip("%").lower()
            argument = words[1] if len(words) > 1 else ""
            sections.append(_Section(name, argument, row))
        elif sections:
            sections[-1].rows.append(row)
        elif _says_something(line):
            value = line.split("#")[0].strip()
            if key and header[key][0].endswith("\\"):
                before, where = header[key]
                joined = of_lines([(where.first, where.text.rstrip("\n")), row])
                header[key] = (before[:-1] + value, joined)
                continue
            name, colon, rest = value.partition(":")
            key = name.strip().lower() if colon else ""
            if not colon or key in header:
                what = "it is not a line of a header" if not colon else "it stands there twice"
                ledger.lose(of_lines([row]), what, "check its spelling")
                key = ""
                continue
            header[key] = (rest.strip(), of_lines([row]))
    return _Stage(header, rows, sections)


def _arguments(text: str) -> dict[str, str]:
    """The defaults of all %arguments sections."""
    defaults: dict[str, str] = {}
    inside = False
    for _, line in split_lines(text):
        words = line.split()
        if words and words[0].startswith("%"):
            inside = words[0].lower() == "%arguments"
        elif re.match(r"(?i)bootstrap:", line):
            inside = False
        elif inside and _says_something(line) and "=" in line:
            name, _, value = line.strip().partition("=")
            defaults[name.strip()] = value.strip()
    return defaults


class _Reader:
    """Reads the last stage."""

    def __init__(self, ledger: Ledger, folder: Path, arguments: dict[str, str]):
        self.ledger, self.arguments = ledger, arguments
        self.interpreter = Interpreter(ledger)
        self.context = Context(folder, ledger)
        self.readers: dict[str, Callable[[_Section, list[Row]], object]] = {
            "arguments": self._arguments,
            "files": self._files,
            "labels": self._labels,
            "environment": self._environment,
            "post": self._post,
        }

    def stage(self, stage: _Stage) -> None:
        self._header(stage.header)
        # Apptainer lays the files before %post runs, wherever the sections stand.
        order = {"arguments": 0, "files": 1, "post": 2}
        for section in sorted(stage.sections, key=lambda s: order.get(s.name, 3)):
            self._section(section)

    def _header(self, header: dict[str, tuple[str, Located]]) -> None:
        kind, where = header.pop("bootstrap")
        kind = self._filled(kind.lower()) or ""
        header.pop("stage", None)
        if kind == "docker":
            self._docker(header, where)
        elif kind == "debootstrap":
            self._debootstrap(header, where)
        else:
            why = "a recipe starts from a mirror or an image of a registry"
            self.ledger.lose(where, why, "[base] with a suite of Debian or Ubuntu")
        for key, (value, place) in header.items():
            why = f"[base] has nothing like `{key}`"
            self.ledger.lose(place, why, "check what it did", f"{key}: {value}")

    def _docker(self, header: dict[str, tuple[str, Located]], where: Located) -> None:
        value, place = header.pop("from", ("", where))
        image = self._filled(value)
        for key in ("namespace", "registry"):
            if key in header and image:
                image = f"{header[key][0].strip('/')}/{image}"
                self.ledger.carry(header.pop(key)[1])
        if images.set_base(self.ledger, place, image or ""):
            self.ledger.carry(place)
        self.ledger.carry(where)

    def _debootstrap(self, header: dict[str, tuple[str, Located]], where: Located) -> None:
        suite, place = header.pop("osversion", ("", where))
        mirror, at = header.pop("mirrorurl", ("", where))
        distribution = "ubuntu" if "ubuntu" in mirror else "debian"
        if images.set_base(self.ledger, place, f"{distribution}:{self._filled(suite) or ''}"):
            self.ledger.carry(place)
            self.ledger.carry(where)
        self.ledger.carry(at)  # which mirror it is, this machine's apt knows
        if "include" in header:
            names, at = header.pop("include")
            for name in names.replace(",", " ").split():
                if why := self.ledger.add_apt(name):
                    self.ledger.lose(at, why, "its name in packages.apt", name)
            self.ledger.carry(at)

    def _section(self, section: _Section) -> None:
        name, lose = section.name, self.ledger.lose
        rows = [row for row in section.rows if _says_something(row[1])]
        self.ledger.carry(of_lines([section.title]))
        if name in self.readers:
            self.readers[name](section, rows)
        elif name == "runscript" and all(_IDLE_RUNSCRIPT.fullmatch(row[1].strip()) for row in rows):
            self.ledger.carry(section.where)
        elif name in _LOST_SECTIONS:
            if rows:
                lose(of_lines(rows), *_LOST_SECTIONS[name], f"%{name}: {rows[0][1].strip()}")
        elif name.startswith("app"):
            lose(section.where, *_APP, f"%{name} {section.argument}")
        else:
            lose(section.where, "no such section is known", "check its spelling", f"%{name}")

    def _arguments(self, section: _Section, rows: list[Row]) -> None:
        for row in rows:
            name, equals, _ = row[1].strip().partition("=")
            known = equals and name.strip() in self.arguments
            why = "" if known else "a recipe has no arguments, and this one has no default"
            self._account(row, why, "write its value where it is used")

    def _labels(self, section: _Section, rows: list[Row]) -> None:
        for row, entry in self._entries("labels", rows):
            filled = self._filled(entry)
            why = "its value is known only while building"
            if filled is not None:
                key, _, value = filled.partition(" ")
                why = self.ledger.add_label(key, value.strip())
            self._account(row, why, "[labels]")

    def _files(self, section: _Section, rows: list[Row]) -> None:
        if section.argument:
            for row in rows:
                instead = "a [[source]] with `run`, or the file in [files]"
                self._account(row, "it comes out of another stage", instead)
            return
        for row, entry in self._entries("files", rows):
            filled = self._filled(entry) or ""
            paths = [path.strip("\"'") for path in re.findall(r"\"[^\"]*\"|'[^']*'|\S+", filled)]
            line = Located(filled, (row[0],) * len(filled))
            if len(paths) not in (1, 2) or len(paths) != sum(len(c.words) for c in commands(line)):
                self._account(row, "it does not name a source and a target", _FILES)
                continue
            source, target = paths[0], (paths[1:] or [""])[0]
            whole = True
            place, into = resolved("/", target or source), target.endswith("/")
            for text, why in self.context.copy(source, place, into=into, docker=False):
                whole = self.ledger.lose(of_lines([row]), why, _FILES, text)
            if whole:
                self.ledger.carry(of_lines([row]))

    def _environment(self, section: _Section, rows: list[Row]) -> None:
        for command in commands(self._script(section.rows), {}):
            where, words = command.where, command.words
            pairs = list(assignments(words[1:]))
            sets = bool(pairs) and len(pairs) == len(words) - 1 and words[0].value == "export"
            if command.why or command.redirections or not sets:
                why = command.why or "only `export NAME=value` sets a variable of a recipe"
                self.ledger.lose(where, why, "[env]")
                continue
            whole = True
            for name, value in pairs:
                why = "its value is known only when a container starts"
                if value is not None:
                    why = self.ledger.add_env(name, value)
                if why:
                    automatic = "fairlead puts [python] and [mpi] on PATH itself"
                    instead = automatic if name == "PATH" else "[env]"
                    whole = self.ledger.lose(where, why, instead, f"{name} in %environment")
            if whole:
                self.ledger.carry(where)

    def _post(self, section: _Section, rows: list[Row]) -> None:
        if section.argument and not re.fullmatch(r"-c\s+\S*/(ba|da)?sh", section.argument):
            why = "it is a program of another language"
            self.ledger.lose(section.where, why, "its packages in packages.apt and packages.pip")
        else:
            self.interpreter.script(self._script(section.rows))

    def _entries(self, kind: str, rows: list[Row]) -> list[tuple[Row, str]]:
        """Each line of a section with what spython reads in it; lost where it cannot read all."""
        entries = _read_section(kind, [line for _, line in rows])
        if len(entries) == len(rows):
            return list(zip(rows, entries, strict=True))
        for row in rows:
            self._account(row, "a line of its section cannot be read", "check its spelling")
        return []

    def _script(self, rows: list[Row]) -> Located:
        """A script with the defaults of %arguments in it; one without a default becomes unknown."""
        return of_lines(
            (n, line if (text := self._filled(line)) is None else text) for n, line in rows
        )

    def _filled(self, text: str) -> str | None:
        """``{{ NAME }}`` replaced by its default; None when one has none."""
        names = re.findall(r"\{\{\s*(\w+)\s*\}\}", text)
        if any(name not in self.arguments for name in names):
            return None
        return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda m: self.arguments[m[1]], text)

    def _account(self, row: Row, why: str, instead: str) -> None:
        if why:
            self.ledger.lose(of_lines([row]), why, instead)
        else:
            self.ledger.carry(of_lines([row]))


def _read_section(kind: str, lines: list[str]) -> list[str]:
    """The entries of %labels or %files as spython reads them; none when it fails."""
    from spython.logger import bot
    from spython.main.parse.parsers.singularity import SingularityParser

    bot.level = 0  # it would print
    try:
        parser = SingularityParser(None, load=False)
        parser.lines = [f"%{kind}", *lines]
        parser.parse()
        return [str(entry) for entry in getattr(parser.recipe[parser.active_layer], kind)]
    except (Exception, SystemExit):  # it takes `bootstrap:` for a header anywhere, and may exit
        return []
