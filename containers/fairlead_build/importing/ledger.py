"""What of a file was carried into a recipe, and what was lost. Every line is in one or the other."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from pydantic import TypeAdapter, ValidationError

from fairlead.base.errors import Finding, Severity, finding_of
from fairlead_build.base.requirements import parse_requirement
from fairlead_build.importing.located import Located
from fairlead_build.recipe.checks import OWN_VARIABLES, SUITE_PYTHON, bad_target
from fairlead_build.recipe.inherit import project
from fairlead_build.recipe.model import AptName, ImageReference, OneLine, Variable

_SUITES = {
    "debian": {"11": "bullseye", "12": "bookworm", "13": "trixie"},
    "ubuntu": {"20.04": "focal", "22.04": "jammy", "24.04": "noble"},
}
# Words of image names and tags that say which distribution is inside: none of these has apt.
_WITHOUT_APT = re.compile(
    r"(alma(linux)?|alpine|amazonlinux|archlinux|bci|busybox|centos|clearlinux|distroless|fedora|gentoo|leap|mageia"
    r"|nanoserver|nixos|opensuse|oraclelinux|photon|rhel|rocky(linux)?|scientificlinux|sles?|suse|tumbleweed|ubi"
    r"|voidlinux|windowsservercore|wolfi)[0-9.]*"
)
# Files by which the commands of an image install other packages, or other versions, than a recipe does.
_CONFIGURES = re.compile(
    r"(?P<pip>/etc/pip\.conf|/(?:.+/)?\.?pip/pip\.conf|/(?:.+/)?pip\.ini)"
    r"|(?P<apt>/etc/apt/(?:sources\.list|preferences|apt\.conf).*|/etc/dpkg/dpkg\.cfg.*)"
)


def instead_of(part: str) -> str:
    """What to do instead of laying ``SOURCE to TARGET``, or a target, which cannot be."""
    configures = _CONFIGURES.fullmatch(part.rpartition(" to ")[2])
    return "what it changes, in [packages]" if configures else "[files]"


@dataclass(frozen=True)
class Loss:
    """Something that no recipe can say, or that is not certain to mean the same.

    Attributes:
        file: as the user would name it.
        first, last: its lines, from 1.
        text: what is lost, on one line.
        instead: what to do about it.
    """

    file: str
    first: int
    last: int
    text: str
    why: str
    instead: str

    @property
    def place(self) -> str:
        return f"{self.file}:{self.first}"

    def also(self, names: Sequence[str]) -> Loss:
        """The same, of more names."""
        more = [name for name in names if name not in self.text.split()]
        return replace(self, text=" ".join([self.text, *more]))

    def finding(self, severity: Severity = Severity.ERROR) -> Finding:
        shown = self.text if len(self.text) <= 90 else self.text[:87] + "..."
        return finding_of("import-loss", shown=shown, loss=self, severity=severity)


@dataclass(frozen=True)
class Laid:
    """A file of this machine that is laid into the image."""

    source: Path
    executable: bool


@dataclass
class Ledger:
    """A recipe that is being made, and the account of the lines it is made from.

    Attributes:
        file: the file that is read, as the user named it.
        variables: what is known of the environment at this point, for later lines.
        base: keys of ``[base]``; empty while no stage has one.
        staged: every file that was copied, also those that no image keeps.
        mounts: what one script sees besides, by the place in the image where it is mounted: its file of a name.
        folders: those that are known to be in the image besides every Debian's.
        scratch: a folder for files whose text stands in the file itself.
        read: the lines of ``file`` that were read; what of them is not in the recipe, is lost.
        places: where each requirement of ``pip`` was asked for.
        base_place: where the base was named.
    """

    file: str
    base: dict[str, Any] = field(default_factory=dict)
    mpi: dict[str, str] = field(default_factory=dict)
    python_version: str = ""
    apt: list[str] = field(default_factory=list)
    pip: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    files: dict[str, Laid] = field(default_factory=dict)
    staged: dict[str, Path] = field(default_factory=dict)
    mounts: dict[str, Callable[[str], Path | None]] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    losses: list[Loss] = field(default_factory=list)
    read: set[int] = field(default_factory=set)
    variables: dict[str, str] = field(default_factory=dict)
    scratch: Path | None = None
    places: dict[str, Located] = field(default_factory=dict)
    base_place: Located | None = None

    def account(self, where: Located) -> None:
        """These lines were read: they are in the recipe, lost, or say nothing about an image."""
        self.read.update(range(where.first, where.last + 1))

    def lose(self, where: Located, why: str, instead: str, text: str = "", file: str = "") -> None:
        """These lines are not in the recipe; ``text`` when only a part of them is not."""
        shown = _on_one_line(text) if text else where.shown
        known = ((loss.text, loss.why, loss.instead, loss.file) for loss in self.losses)
        if text and (shown, why, instead, file or self.file) in known:
            return self.account(where) if not file else None
        self.losses.append(Loss(file or self.file, where.first, where.last, shown, why, instead))
        if not file:
            self.account(where)

    def lose_together(
        self, where: Located, why: str, instead: str, text: str, names: Sequence[str]
    ) -> None:
        """As :meth:`lose`, but all losses of this kind become one, with all the names."""
        for number, loss in enumerate(self.losses):
            if loss.why == why and loss.text.startswith(f"{text} "):
                self.losses[number] = loss.also(names)
                return self.account(where)
        self.lose(where, why, instead, " ".join([text, *names]))

    def file_at(self, place: str) -> Path | None:
        """The file of this machine that a script finds at ``place``; None where it is not known to find any."""
        for folder in (place, *map(str, PurePosixPath(place).parents)):
            if folder in self.mounts:
                return self.mounts[folder](place[len(folder) :].lstrip("/"))
        return self.staged.get(place)

    def set_base(self, where: Located, image: str) -> None:
        """Sets [base] to the image of a FROM line."""
        self.base_place = where
        image = image.removeprefix("docker://").strip()
        if not image or image == "scratch":
            why = "it starts from nothing" if image else "what it starts from is not known here"
            return self.lose(where, why, "[base] with a suite of Debian or Ubuntu")
        short = re.sub(r"^((index\.|registry-1\.)?docker\.io/)?(library/)?", "", image)
        match = re.fullmatch(
            r"(debian|ubuntu):([a-z]+|[0-9]+(?:\.[0-9]+)?)((?:-[a-z0-9.]+)*)", short
        )
        suite = _suite(match[1], match[2]) if match else None
        if match is None or suite is None:
            base = f"docker://{image}"
            if other := _without_apt(image):
                why = f"`{other}` has no apt, and a recipe installs packages of Debian or Ubuntu"
                return self.lose(where, why, "[base] with a suite of Debian or Ubuntu")
            if why := _refused(ImageReference, base, "it is not a reference of a registry"):
                return self.lose(where, why, "image in [base]")
            self.base = {"image": base}
            return
        self.base = {"distribution": match[1], "suite": suite}
        left = set(match[3].split("-")) - {"", "slim"}
        point = "." in match[2] and match[1] == "debian"
        if left or point:
            instead = f'the versions are in lock.toml; or image = "docker://{image}" in [base]'
            self.lose(where, f"{suite} of today's archive is taken", instead, f"FROM {image}")

    # What a recipe can hold. Each of these returns why it cannot, or nothing.

    def add_apt(self, name: str) -> str:
        if why := _refused(AptName, name, "it is not the name of a package"):
            return why
        if name not in self.apt:
            self.apt.append(name)
        return ""

    def add_pip(self, text: str, where: Located, *, upgrades: bool = False) -> str:
        try:
            requirement = parse_requirement(text)
        except InvalidRequirement:
            return "it is not a requirement that an index could answer"
        if requirement.url:
            return "a lock names an index, never a URL"
        if requirement.specifier and any("+" in s.version for s in requirement.specifier):
            return "PyPI has no version with a `+`, and the line names no index that has it"
        before = [r for r in self.pip if project(r) == project(text)]
        kept = [r for r in before if not _replaced(parse_requirement(r), requirement, upgrades)]
        if any(_implied(requirement, parse_requirement(r)) for r in kept):
            return ""
        self.pip = [*(r for r in self.pip if r in kept or r not in before), text]
        self.places[text] = where
        return ""

    def add_env(self, name: str, value: str) -> str:
        if name in OWN_VARIABLES:
            return "fairlead sets it in every image, or it would hide the host's MPI"
        if name == "HOME":
            return "engines set it to the home of the user who runs the image"
        why = _refused(Variable, name, "it is not the name of a variable")
        why = why or _refused(OneLine, value, "its value is longer than a line")
        if not why:
            self.env[name] = value
        return why

    def add_label(self, key: str, value: str) -> str:
        why = _refused(OneLine, key, "its name is longer than a line")
        why = why or _refused(OneLine, value, "its value is longer than a line")
        if not why:
            self.labels[key] = value
        return why

    def add_file(self, target: str, source: Path, executable: bool | None = None) -> str:
        self.staged[target] = source
        self.folders.update(str(folder) for folder in PurePosixPath(target).parents)
        if not _is_utf8(target) or not _is_utf8(str(source)):
            return "its name is not UTF-8, as that of a file in a recipe has to be"
        if target.startswith(("/tmp/", "/var/tmp/")):
            return ""  # engines mount over these: it is there for later commands only
        if configures := _CONFIGURES.fullmatch(target):
            return f"it configures {configures.lastgroup}, and a recipe's packages are resolved without it"
        if why := bad_target(target):
            return why
        above = [p for p in self.files if target.startswith(f"{p}/") or p.startswith(f"{target}/")]
        if above:
            return f"{above[0]} is a file too, so one of both cannot be a folder"
        own = bool(source.stat().st_mode & 0o111)
        self.files[target] = Laid(source, own if executable is None else executable)
        return ""


def _on_one_line(text: str) -> str:
    """A text with names of files in it, which may be any bytes."""
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(char: str) -> str:
    byte = ord(char) - 0xDC00  # how Python writes a byte that is not UTF-8
    return f"\\x{byte:02x}" if 0x80 <= byte <= 0xFF else ascii(char)[1:-1]


def _is_utf8(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _refused(kind: Any, value: str, why: str) -> str:
    try:
        TypeAdapter(kind).validate_python(value)
    except ValidationError:
        return why
    return ""


def _replaced(before: Requirement, after: Requirement, upgrades: bool) -> bool:
    """Whether pip, asked for ``after``, leaves nothing of what ``before`` asked for."""
    if str(before.marker) != str(after.marker):
        return False
    if upgrades or _implied(before, after):
        return True
    pins = (
        (pin.version, other.specifier)
        for asked, other in ((before, after), (after, before))
        for pin in asked.specifier
        if pin.operator in ("==", "===") and not pin.version.endswith(".*")
    )
    return any(not allowed.contains(version, prereleases=True) for version, allowed in pins)


def _implied(loose: Requirement, strict: Requirement) -> bool:
    """Whether ``strict`` asks for all that ``loose`` does, as far as that is plain."""
    same = str(loose.marker) == str(strict.marker) and loose.extras <= strict.extras
    return same and loose.specifier in (SpecifierSet(), strict.specifier)


def env_hint(name: str) -> str:
    """What to do instead of setting the variable ``name`` to a value that is not known."""
    return "fairlead puts [python] and [mpi] on PATH itself" if name == "PATH" else "[env]"


def plain_name(text: str) -> str:
    """A recipe's name from any text: ``My Image.def`` becomes ``my-image-def``."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:63].strip("-")
    return name or "imported"


def _without_apt(image: str) -> str:
    """The word of an image's name or tag that names a distribution without apt; empty if none does."""
    name = image.partition("@")[0]
    host, slash, rest = name.partition("/")
    if slash and re.search(r"[.:]|^localhost$", host):
        name = rest  # of the registry, not of the image
    words = re.split(r"[/:_-]", name.lower())
    return next((word for word in words if _WITHOUT_APT.fullmatch(word)), "")


def _suite(distribution: str, release: str) -> str | None:
    known = _SUITES[distribution]
    if release in known.values():
        return release
    # A point release of Debian is the release.
    major = release.split(".")[0] if distribution == "debian" else release
    return known.get(release) or known.get(major)


def python_of(base: dict[str, str]) -> str:
    """The Python that the distribution under ``base`` calls python3; empty when not known."""
    if suite := base.get("suite"):
        return SUITE_PYTHON.get(suite, "")
    image = base.get("image", "")
    if own := re.search(r"(?:^|/)python:(3\.[0-9]{1,2})(?![0-9])", image):
        return own[1]
    for words in (*_SUITES["debian"].items(), *_SUITES["ubuntu"].items()):
        for word in words:
            # `12` alone is too short to mean a Debian: CUDA has versions too.
            if len(word) > 2 and re.search(rf"(?<![0-9.]){re.escape(word)}(?![0-9])", image):
                return SUITE_PYTHON[words[1]]
    return ""
