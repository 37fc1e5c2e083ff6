"""Which .debs a recipe means: apt decides, in a private root, against signed indexes alone."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from fairlead.base.dates import seconds_of_date
from fairlead.base.errors import FairleadError, fail
from fairlead.base.suggest import suggest
from fairlead.base.text import plain
from fairlead_build.base import pace
from fairlead_build.base.proc import clean_environment, run, tool
from fairlead_build.cache.store import Cache, scratch_parent, workspace
from fairlead_build.recipe.lock import AptIndex, Deb
from fairlead_build.resolve.apt_sources import apt_sources

_FIELDS = frozenset(
    {"Package", "Version", "Architecture", "Essential", "Filename", "Provides", "Size", "SHA256"}
)
_AGAIN = "run the same command again"
_UNMET = re.compile(
    r"^\s*(\S+) : (?:Pre)?(?:Depends|Breaks|Conflicts): (\S+)", re.MULTILINE | re.IGNORECASE
)
Stanza = dict[str, str]


@dataclass
class AptRoot:
    """A private apt: its own lists, status and sources; this machine's keyrings and proxies.

    Attributes:
        epoch: when the first index was made, in seconds of Unix time.
        packages: of each name and version the index that has it and what that says of it; no index
            for a .deb that a lock names and the indexes no longer have.
    """

    folder: Path
    environment: dict[str, str]
    epoch: int = 0
    packages: dict[tuple[str, str], tuple[AptIndex | None, Stanza]] = field(default_factory=dict)

    def essential(self) -> list[str]:
        """The packages that the distribution marks as essential."""
        return sorted(
            {s["Package"] for _, s in self.packages.values() if s.get("Essential") == "yes"}
        )

    def providers(self, virtual: str) -> list[str]:
        """The packages that provide ``virtual``, a name without a package of its own."""
        wanted = re.compile(rf"(?:^|, *){re.escape(virtual)}(?= *(?:,|\(|$))")
        stanzas = (stanza for _, stanza in self.packages.values())
        return sorted({s["Package"] for s in stanzas if wanted.search(s.get("Provides", ""))})

    def add(self, index: AptIndex | None, text: str) -> None:
        """Takes in a Packages file; what is known already stays."""
        for stanza in text.split("\n\n"):
            pairs = (line.split(": ", 1) for line in stanza.split("\n") if line[:1].strip())
            fields = {pair[0]: pair[1] for pair in pairs if len(pair) == 2 and pair[0] in _FIELDS}
            if "Package" in fields:
                self.packages.setdefault((fields["Package"], fields["Version"]), (index, fields))


@contextmanager
def apt_root(
    indexes: Sequence[AptIndex], architecture: str, *, remedy: str, status: str = ""
) -> Iterator[AptRoot]:
    """An apt that knows ``indexes`` and nothing else, their signatures checked.

    Args:
        indexes: the first one is that of the distribution itself.
        status: dpkg's status of what is installed already.
    Raises:
        FairleadError: an index is configured nowhere, or cannot be read.
    """
    with workspace(scratch_parent(300 << 20), "fairlead-apt-") as folder:
        root = _prepare(folder, architecture, status)
        stanzas = [_genuine(root, index, remedy) for index in indexes]
        (root.folder / "sources.list.d" / "ours.sources").write_text("\n".join(stanzas), "utf-8")
        _update(root, remedy, " and ".join(index.name for index in indexes))
        for index in indexes:
            if origin := _origin(root, index):
                raise _no_archive(index, [f"{apt_sources(index)[0].origin} offers {origin}"])
        _read_indexes(root, indexes)
        yield root


def _prepare(folder: Path, architecture: str, status: str) -> AptRoot:
    for name in ("state/lists/partial", "cache/archives/partial", "sources.list.d"):
        (folder / name).mkdir(parents=True)
    (folder / "status").write_text(status, "utf-8")
    (folder / "preferences").touch()
    (folder / "sources.list").touch()
    settings = {
        "Dir::Etc::sourcelist": folder / "sources.list",
        "Dir::Etc::sourceparts": folder / "sources.list.d",
        "Dir::Etc::preferences": folder / "preferences",
        "Dir::Etc::preferencesparts": "/dev/null",
        "Dir::State": folder / "state",
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
        "APT::Architecture": architecture,
        "APT::Install-Recommends": "false",
        "APT::Install-Suggests": "false",
        "Acquire::Languages": "none",
        "APT::Sandbox::User": "root",
    }
    lines = ["#clear APT::Architectures;", f'APT::Architectures "{architecture}";']
    lines += [f'{key} "{value}";' for key, value in settings.items()]
    (folder / "apt.conf").write_text("\n".join(lines) + "\n", "utf-8")
    # This machine's proxies and certificates stay known.
    names = ("SSL_CERT_FILE", "SSL_CERT_DIR")
    kept = {n: v for n, v in os.environ.items() if n.lower().endswith("_proxy") or n in names}
    return AptRoot(folder, clean_environment({**kept, "APT_CONFIG": str(folder / "apt.conf")}))


def _update(root: AptRoot, remedy: str, what: str) -> None:
    argv = ["apt-get", "update", "-qq", "-o", "APT::Update::Error-Mode=any"]
    watch = partial(pace.kept_up, folder=root.folder, where=f"apt's sources of {what}")
    run(argv, env=root.environment, doing=f"read the index {what}", remedy=remedy, watch=watch)


def _genuine(root: AptRoot, index: AptIndex, remedy: str) -> str:
    """The stanza of the first configured archive that really is ``index``."""
    refused: list[str] = []
    candidates = apt_sources(index)
    for source in candidates:
        stanza = source.narrowed(index.suite, index.components)
        if len(candidates) == 1:
            return stanza  # looked at once it is read
        place = root.folder / "sources.list.d" / "ours.sources"
        place.write_text(stanza, "utf-8")
        _update(root, f"check {source.origin} and the network, then {remedy}", index.name)
        origin = _origin(root, index)
        if not origin:
            return stanza
        refused.append(f"{source.origin} offers {origin}")
    raise _no_archive(index, refused)


def _origin(root: AptRoot, index: AptIndex) -> str:
    """Whose index of that suite apt has read, when it is not ``index``; empty when it is."""
    for release, path in _targets(root):
        if release == index.suite:
            fields = _release_fields(path)
            right = index.suite in (fields.get("Codename"), fields.get("Suite"))
            origin = fields.get("Origin", "an unnamed origin")
            if not right or origin != index.distribution.capitalize():
                return f"{origin} {fields.get('Codename', '')}".strip()
    return ""


def _no_archive(index: AptIndex, refused: Sequence[str]) -> FairleadError:
    shown = "; ".join(refused)
    return fail("apt-source-missing-no-configured-archive", index=index, refused=shown)


def _targets(root: AptRoot) -> list[tuple[str, Path]]:
    """Suite and file of every Packages index that apt has read."""
    form = ("--format", "$(RELEASE)\t$(FILENAME)", "Created-By: Packages")
    argv, doing = ["apt-get", "indextargets", *form], "ask apt for its indexes"
    listing = run(argv, env=root.environment, doing=doing, remedy=_AGAIN).decode()
    rows = [line.split("\t") for line in listing.splitlines()]
    return [(row[0], Path(row[1])) for row in rows if len(row) == 2]


def _release_fields(packages: Path) -> dict[str, str]:
    """The Release file that a Packages file belongs to."""
    stem = re.sub(r"_[^_]+_binary-[^_]+_Packages(\..+)?$", "", packages.name)
    for name in (f"{stem}_InRelease", f"{stem}_Release"):
        path = packages.with_name(name)
        if path.is_file():
            text = path.read_text("utf-8", "replace")
            return dict(re.findall(r"^([A-Za-z-]+): (.*)$", text, re.MULTILINE))
    return {}


def _read_indexes(root: AptRoot, indexes: Sequence[AptIndex]) -> None:
    for release, path in _targets(root):
        index = next((i for i in indexes if i.suite == release), None)
        argv: list[str | Path] = [tool("apt-helper"), "cat-file", path]
        listing = run(argv, env=root.environment, doing="read apt's index", remedy=_AGAIN)
        root.add(index, listing.decode("utf-8", "replace"))
        if index == indexes[0] and not root.epoch:
            root.epoch = _epoch(index, path)


def _epoch(index: AptIndex, packages: Path) -> int:
    """When the archive was made, in seconds since 1970."""
    date = _release_fields(packages).get("Date", "")
    try:
        return int(seconds_of_date(date))
    except ValueError:
        raise fail("apt-release-date", index=index, date=plain(date)[:60]) from None


def newest(index: AptIndex, architecture: str, names: Sequence[str], remedy: str) -> list[Deb]:
    """Some packages as a signed index has them today, without their dependencies.

    Raises:
        FairleadError: the index cannot be read, or lacks one.
    """
    with apt_root([index], architecture, remedy=remedy) as root:
        known = {name: fields for (name, _), (_, fields) in root.packages.items()}
    if lost := next((name for name in names if name not in known), ""):
        near = suggest(lost, known)
        raise fail("apt-unknown", index=index, lost=lost, suggestion=near, remedy=remedy)
    return [_line(known[name], index) for name in names]


def add_folder(root: AptRoot, debs: Sequence[Deb], cache: Cache, remedy: str) -> None:
    """Lets apt also choose from ``debs``, which no index has any more; they are in the store."""
    folder = root.folder / "kept"
    folder.mkdir()
    stanzas = []
    for deb in debs:
        argv: list[str | Path] = ["dpkg-deb", "--field", cache.blob(deb.sha256)]
        env = {**os.environ, "TMPDIR": str(root.folder)}
        control = run(argv, env=env, doing=f"read package {deb.name}", remedy=remedy)
        place = f"Filename: ./{deb.file}\nSize: {deb.size}\nSHA256: {deb.sha256}\n"
        stanzas.append(control.decode("utf-8", "replace").rstrip("\n") + "\n" + place)
    text = "\n".join(stanzas)
    (folder / "Packages").write_text(text, "utf-8")
    (root.folder / "sources.list").write_text(f"deb [trusted=yes] copy:{folder} ./\n", "utf-8")
    _update(root, remedy, "the packages of the lock")
    root.add(None, text)


@dataclass
class Pins:
    """Which versions apt may choose from.

    Attributes:
        versions: packages that must stay, and at which version.
        security: packages that may come from the security index; the others come from it only
            when the distribution's own index does not have them.
    """

    versions: dict[str, str] = field(default_factory=dict)
    security: set[str] = field(default_factory=set)
    security_suite: str = ""

    def preferences(self) -> str:
        """As apt_preferences(5) wants them."""
        rows = [(name, f"version {version}", 1001) for name, version in self.versions.items()]
        if self.security_suite:
            suite = f"release n={self.security_suite}"
            rows += [("*", suite, 100), *((name, suite, 500) for name in sorted(self.security))]
        return "\n".join(
            f"Package: {name}\nPin: {pin}\nPin-Priority: {priority}\n"
            for name, pin, priority in rows
        )

    def release(self, output: str) -> bool:
        """Unpins what apt complains about; False when there is nothing left to unpin."""
        freed = False
        for pair in _UNMET.findall(output):
            # What is wanted goes along; else the one that wants something else of it.
            name = next((n.split(":")[0] for n in pair[::-1] if self._held(n.split(":")[0])), None)
            if name is not None:
                self.versions.pop(name, None)
                if self.security_suite:
                    self.security.add(name)
                freed = True
        return freed

    def _held(self, name: str) -> bool:
        return name in self.versions or (bool(self.security_suite) and name not in self.security)


def solve(
    root: AptRoot, wanted: Sequence[str], pins: Pins, *, doing: str, remedy: str
) -> list[tuple[str, str]]:
    """Name and version of everything to install for ``wanted``.

    Args:
        pins: what stays; packages that ``wanted`` forces along are taken out of it.
    Raises:
        FairleadError: they contradict each other.
    """
    while True:
        (root.folder / "preferences").write_text(pins.preferences(), "utf-8")
        output: list[str] = []
        argv = ["apt-get", "install", "-s", "-y", "-q", "--no-remove", *wanted]
        try:
            run(argv, env=root.environment, doing=doing, remedy=remedy, on_line=output.append)
        except FairleadError:
            if not pins.release("\n".join(output)):
                raise
            continue
        lines = "\n".join(output)
        installs = re.findall(r"^Inst (\S+) (?:\[[^\]]*\] )?\((\S+) ", lines, re.MULTILINE)
        return sorted({(name.split(":")[0], version) for name, version in installs})


def locked(root: AptRoot, chosen: Sequence[tuple[str, str]], old: Sequence[Deb]) -> list[Deb]:
    """The lock's lines for what apt chose; a package that stays keeps its line."""
    lines = {(deb.name, deb.version): deb for deb in old}
    for pair in set(chosen) - lines.keys():
        index, fields = root.packages[pair]
        if index is None:
            raise fail("apt-unknown-chose-no-index", pair=pair)
        lines[pair] = _line(fields, index)
    return [lines[pair] for pair in chosen]


def _line(fields: Stanza, index: AptIndex) -> Deb:
    names = {"Package": "name", "Filename": "path", "SHA256": "sha256"}
    names |= {key: key.lower() for key in ("Version", "Architecture", "Size")}
    values = {name: fields[key] for key, name in names.items()}
    return Deb.model_validate({**values, "size": int(fields["Size"]), "index": index.name})
