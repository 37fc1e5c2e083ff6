"""Sections of a Singularity.def, each with its lines.

Stages and sections are cut as Apptainer cuts them (pkg/build/types/parser of its source).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from fairlead_build.importing.commands import Interpreter, resolved
from fairlead_build.importing.context import Context
from fairlead_build.importing.ledger import Ledger, env_hint, instead_of
from fairlead_build.importing.located import Located, has_content, of_lines, split_lines
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
_ARGUMENT = re.compile(r"\{\{\s*(\w+)\s*\}\}")
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
    def content(self) -> list[Row]:
        """Its lines that are neither blank nor comments."""
        return [row for row in self.rows if has_content(row[1])]


@dataclass
class _Stage:
    rows: list[Row]
    header: dict[str, tuple[str, Located]] = field(default_factory=dict)
    sections: list[_Section] = field(default_factory=list)


def read(text: str, ledger: Ledger, folder: Path) -> None:
    """Reads a definition into ``ledger``. Local files are those of ``folder``."""
    rows = split_lines(text)
    begins = [n for n, (_, line) in enumerate(rows) if re.match(r"(?i)bootstrap:", line)]
    # As Apptainer does: stages begin at the margin, and one stage may be indented.
    indented = (n for n, (_, line) in enumerate(rows) if re.match(r"(?i)\s+bootstrap\s*:", line))
    begins = [*(begins or list(indented)[:1]), len(rows)]
    _lose(ledger, rows[: begins[0]], "it stands before the first `Bootstrap:`", "write it below")
    stages = [_stage(rows[begin:end], ledger) for begin, end in pairwise(begins)]
    for stage in stages[:-1]:
        why = "it belongs to a stage that is not the last"
        _lose(ledger, stage.rows, why, "what is built there: a [[source]] with `run`")
    if stages:
        _Reader(ledger, folder, stages).stage(stages[-1])


def _lose(ledger: Ledger, rows: list[Row], why: str, instead: str) -> None:
    for row in rows:
        if has_content(row[1]):
            ledger.lose(of_lines([row]), why, instead)


def _stage(rows: list[Row], ledger: Ledger) -> _Stage:
    stage = _Stage(rows)
    header, key = stage.header, ""
    for row in rows:
        line = row[1].strip()
        if line.startswith("%"):
            title, *argument = line.split(maxsplit=1)
            stage.sections.append(_Section(title.lstrip("%").lower(), "".join(argument), row))
        elif stage.sections:
            stage.sections[-1].rows.append(row)
        elif has_content(line):
            value = line.split("#")[0].strip()
            if key and header[key][0].endswith("\\"):
                before, where = header[key]
                joined = of_lines([(where.first, where.text.rstrip("\n")), row])
                header[key] = (before[:-1] + value, joined)
                continue
            name, colon, rest = value.partition(":")
            key = name.strip().lower() if colon else ""
            if not colon or key in header:
                what = "it stands there twice" if colon else "it is not a line of a header"
                ledger.lose(of_lines([row]), what, "check its spelling")
                key = ""
            else:
                header[key] = (rest.strip(), of_lines([row]))
    return stage


class _Reader:
    """Reads the last stage. A method `read_NAME` reads the section %NAME."""

    def __init__(self, ledger: Ledger, folder: Path, stages: list[_Stage]):
        self.ledger = ledger
        self.interpreter, self.context = Interpreter(ledger), Context(folder, ledger, docker=False)
        self.arguments: dict[str, str] = {}  # the defaults of all %arguments
        sections = (s for stage in stages for s in stage.sections if s.name == "arguments")
        for name, equals, value in (r[1].partition("=") for s in sections for r in s.content):
            if equals:
                self.arguments[name.strip()] = value.strip()

    def stage(self, stage: _Stage) -> None:
        self._header(stage.header)
        # Apptainer lays the files before %post runs, wherever the sections stand.
        order = {"arguments": 0, "files": 1, "post": 2}
        for section in sorted(stage.sections, key=lambda s: order.get(s.name, 3)):
            self._section(section)

    def _header(self, header: dict[str, tuple[str, Located]]) -> None:
        for _, place in header.values():
            self.ledger.account(place)  # it is carried here, or lost
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
                image = f"{header.pop(key)[0].strip('/')}/{image}"
        self.ledger.set_base(place, image or "")

    def _debootstrap(self, header: dict[str, tuple[str, Located]], where: Located) -> None:
        suite, place = header.pop("osversion", ("", where))
        mirror, _ = header.pop("mirrorurl", ("", where))  # which one, this machine's apt knows
        distribution = "ubuntu" if "ubuntu" in mirror else "debian"
        self.ledger.set_base(place, f"{distribution}:{self._filled(suite) or ''}")
        names, at = header.pop("include", ("", where))
        for name in names.replace(",", " ").split():
            if why := self.ledger.add_apt(name):
                self.ledger.lose(at, why, "its name in packages.apt", name)

    def _section(self, section: _Section) -> None:
        name, rows, lose = section.name, section.content, self.ledger.lose
        whole = of_lines([section.title, *section.rows])
        self.ledger.account(of_lines([section.title]))
        if reader := getattr(self, f"read_{name}", None):
            reader(section)
        elif name == "runscript" and all(_IDLE_RUNSCRIPT.fullmatch(row[1].strip()) for row in rows):
            self.ledger.account(whole)
        elif name in _LOST_SECTIONS:
            if rows:
                lose(of_lines(rows), *_LOST_SECTIONS[name], f"%{name}: {rows[0][1].strip()}")
        elif name.startswith("app"):
            lose(whole, *_APP, f"%{name} {section.argument}")
        else:
            lose(whole, "no such section is known", "check its spelling", f"%{name}")

    def read_arguments(self, section: _Section) -> None:
        for row in section.content:
            name, equals, _ = row[1].strip().partition("=")
            known = equals and name.strip() in self.arguments
            why = "" if known else "a recipe has no arguments, and this one has no default"
            self._account(row, why, "write its value where it is used")

    def read_labels(self, section: _Section) -> None:
        for row in section.content:
            filled = self._filled(row[1].strip())
            why = "its value is known only while building"
            if filled is not None:
                key, _, value = filled.partition(" ")
                why = self.ledger.add_label(key, value.strip())
            self._account(row, why, "[labels]")

    def read_files(self, section: _Section) -> None:
        if section.argument:
            instead = "a [[source]] with `run`, or the file in [files]"
            _lose(self.ledger, section.rows, "it comes out of another stage", instead)
            return
        for row in section.content:
            filled = self._filled(row[1].strip()) or ""
            paths = [path.strip("\"'") for path in re.findall(r"\"[^\"]*\"|'[^']*'|\S+", filled)]
            line = Located(filled, (row[0],) * len(filled))
            if len(paths) not in (1, 2) or len(paths) != sum(len(c.words) for c in commands(line)):
                self._account(row, "it does not name a source and a target", _FILES)
                continue
            source, target = paths[0], (paths[1:] or [""])[0]
            place, into = resolved("/", target or source), target.endswith("/")
            for text, why in self.context.copy(source, place, into=into):
                self.ledger.lose(of_lines([row]), why, instead_of(text), text)
            self.ledger.account(of_lines([row]))

    def read_environment(self, section: _Section) -> None:
        for command in commands(self._script(section.rows), {}):
            where, words = command.where, command.words
            pairs = list(assignments(words[1:]))
            sets = bool(pairs) and len(pairs) == len(words) - 1 and words[0].value == "export"
            if command.why or command.written or not sets:
                why = command.why or "only `export NAME=value` sets a variable of a recipe"
                self.ledger.lose(where, why, "[env]")
                continue
            self.ledger.account(where)
            for name, value in pairs:
                why = "its value is known only when a container starts"
                if value is not None:
                    why = self.ledger.add_env(name, value)
                if why:
                    self.ledger.lose(where, why, env_hint(name), f"{name} in %environment")

    def read_post(self, section: _Section) -> None:
        if section.argument and not re.fullmatch(r"-c\s+\S*/(ba|da)?sh", section.argument):
            whole = of_lines([section.title, *section.rows])
            instead = "its packages in packages.apt and packages.pip"
            self.ledger.lose(whole, "it is a program of another language", instead)
        else:
            self.interpreter.script(self._script(section.rows))

    def _script(self, rows: list[Row]) -> Located:
        """A script with the defaults of %arguments in it; one without a default becomes unknown."""

        def value(match: re.Match[str]) -> str:
            # Without blanks it is a word, whose brackets make its value unknown.
            return self.arguments.get(match[1], f"{{{{{match[1]}}}}}")

        return of_lines((number, _ARGUMENT.sub(value, line)) for number, line in rows)

    def _filled(self, text: str) -> str | None:
        """``{{ NAME }}`` replaced by its default; None when one has none."""
        try:
            return _ARGUMENT.sub(lambda m: self.arguments[m[1]], text)
        except KeyError:
            return None

    def _account(self, row: Row, why: str, instead: str) -> None:
        if why:
            self.ledger.lose(of_lines([row]), why, instead)
        else:
            self.ledger.account(of_lines([row]))
