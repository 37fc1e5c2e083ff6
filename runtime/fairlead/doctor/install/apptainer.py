"""Apptainer in a private prefix, for machines whose distribution has none.

Debian's unstable suite has it, built for a newer C library than a stable release's. Its package,
that C library and the few libraries it needs are downloaded by apt itself, which checks their
signatures, into a folder of their own; the programs are then patched to use the loader next to them.
The machine's own packages are not touched, and root is not needed.

``fairlead.engines.apptainer`` knows where the result lies; :mod:`fairlead.doctor.checks.engine` tries whether it runs.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fairlead.base.errors import fail
from fairlead.base.paths import atomic_folder, data_dir, locked
from fairlead.base.process import run, run_checked
from fairlead.base.progress import Progress, Silent, Stage
from fairlead.elf import reader
from fairlead.elf.facts import Elf
from fairlead.elf.patchelf import find_patchelf
from fairlead.engines.apptainer import private_apptainer

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
SUITE = "sid"
RETRY = "fairlead doctor --fix engine"
OTHER_WAY = (
    "install Apptainer 1.3 or newer in another way (apptainer.org), then set\n"
    "FAIRLEAD_APPTAINER=/path/to/apptainer"
)


def install_apptainer(
    environ: Mapping[str, str] = os.environ, progress: Progress | None = None
) -> Path:
    """Makes the private prefix, or finds it whole, and returns its program.

    Below ``data_dir()/apptainer`` each version has its folder, which gets its name when it is
    complete; ``current`` is a symlink to the one that was seen to run.

    Raises:
        FairleadError: no Debian mirror is configured here, apt or a tool failed (its words are in
            the finding), or what was installed does not run.
    """
    progress = progress or Silent()
    home = data_dir(environ) / "apptainer"
    if odd := sorted(set(str(home)) & set(":;$")):
        raise fail("engine-data-folder-name", home=home, odd=odd[0])
    program = private_apptainer(environ)
    with (
        progress.stage("Apptainer, in a prefix of its own") as stage,
        locked(home / ".lock", lambda: stage.note("waiting for another installation")),
    ):
        if not version_of(program):
            final = _make(home, stage)
            made = final / "bin" / "apptainer"
            if (ran := run([made, "--version"])).returncode:
                raise fail(
                    "engine-private-does-not-run", program=made, ran=ran, other_way=OTHER_WAY
                )
            link = home / ".current"
            link.unlink(missing_ok=True)
            link.symlink_to(final.name)
            link.replace(home / "current")
        stage.result(version_of(program))
    return program


def version_of(program: Path) -> str:
    """``apptainer version 1.4.5``; empty when the program is absent or does not run."""
    ran = run([program, "--version"])
    return ran.stdout.strip() if ran.returncode == 0 else ""


def _make(home: Path, stage: Stage) -> Path:
    """The folder of the version that the mirror offers; it has its name only when complete."""
    scratch = home / ".apt"
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        apt = _PrivateApt(scratch, _debian_mirror())
        stage.note("package lists")
        apt.update()
        # An epoch's colon would end the folder's name inside a library search path.
        final = home / apt.version("apptainer").replace(":", "_")
        with atomic_folder(final) as tree:
            for packages in _wanted(apt, tree):
                stage.note(", ".join(packages))
                apt.unpack(packages, tree)
            stage.note("paths")
            _arrange(tree)
            _share_loop_devices(tree)
            _point_at(tree, final)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return final


class _PrivateApt:
    """apt with its own lists, cache and sources: it reads the machine's, and changes nothing."""

    def __init__(self, folder: Path, mirror: str):
        for name in ("lists/partial", "cache/archives/partial", "debs"):
            (folder / name).mkdir(parents=True)
        sources = folder / "sources.list"
        sources.write_text(f"deb [signed-by={KEYRING}] {mirror} {SUITE} main\n", "utf-8")
        self.folder, self.mirror = folder, mirror
        self.known: dict[str, dict[str, str]] = {}
        self.options = [
            f"-o{key}={value}"
            for key, value in {
                "Dir::Etc::SourceList": sources,
                "Dir::Etc::SourceParts": "-",
                "Dir::State::Lists": folder / "lists",
                "Dir::Cache": folder / "cache",
                "Dir::Cache::PkgCache": "pkgcache.bin",  # which images made for Docker turn off
                "APT::Sandbox::User": "root",  # its own account cannot read a private folder
                "APT::Get::Assume-Yes": "true",
                "Acquire::Languages": "none",
                "Acquire::Retries": "3",
                "Acquire::Check-Valid-Until": "false",  # a mirror's copy of sid may be a snapshot
            }.items()
        ]

    def update(self) -> None:
        self._apt_get("--error-on=any", "update")

    def version(self, package: str) -> str:
        """The version the suite offers."""
        if version := self._fields(package).get("Version"):
            return version
        raise fail(
            "engine-no-package",
            suite=SUITE,
            package=package,
            mirror=self.mirror,
            other_way=OTHER_WAY,
        )

    def libraries(self, package: str) -> list[str]:
        """The library packages that ``package`` depends on, first alternatives only."""
        fields = self._fields(package)
        depends = f"{fields.get('Pre-Depends', '')},{fields.get('Depends', '')}"
        names = [re.split(r"[ :(|]", part.strip())[0] for part in depends.split(",")]
        return [name for name in names if name.startswith("lib")]

    def unpack(self, packages: Sequence[str], tree: Path) -> None:
        """Downloads ``packages``; apt checks their hashes against the signed lists."""
        debs = self.folder / "debs"
        # A bare name would follow the machine's installed version.
        self._apt_get("download", *(f"{package}/{SUITE}" for package in packages), cwd=debs)
        for deb in sorted(debs.iterdir()):
            run_checked(["dpkg-deb", "-x", deb, tree], f"cannot unpack {deb.name}", f"`{RETRY}`")
            deb.unlink()

    def _apt_get(self, *words: str, cwd: Path | None = None) -> None:
        run_checked(
            ["apt-get", *self.options, "-qq", *words],
            "apt cannot fetch Apptainer from the Debian mirror",
            f"check the network and the mirror in /etc/apt, then `{RETRY}`; or\n{OTHER_WAY}",
            cwd=cwd,
        )

    def _fields(self, package: str) -> dict[str, str]:
        """One paragraph of the package lists; its first lines suffice."""
        if package not in self.known:
            text = run(["apt-cache", *self.options, "show", "--no-all-versions", package]).stdout
            self.known[package] = dict(re.findall(r"^([\w-]+): (.*)$", text, re.MULTILINE))
        return self.known[package]


def _wanted(apt: _PrivateApt, tree: Path) -> Iterator[list[str]]:
    """Apptainer, then library packages, one level of dependencies at a time, until it has all.

    Its libraries come from its own suite even where the machine has the like, so that the two C
    libraries never meet in one process.
    """
    level = ["apptainer"]
    visited = set(level)
    yield level
    while missing := _missing(tree):
        level = [name for package in level for name in apt.libraries(package)]
        level = [name for name in dict.fromkeys(level) if name not in visited]
        if not level:
            raise fail(
                "engine-libraries-missing",
                suite=SUITE,
                mirror=apt.mirror,
                missing=", ".join(sorted(missing)),
                other_way=OTHER_WAY,
            )
        visited.update(level)
        yield level


def _missing(tree: Path) -> set[str]:
    """Library names that the programs of ``tree`` need, directly or not, and ``tree`` lacks."""
    lacking: set[str] = set()
    done: set[Path] = set()
    todo = [path for path, _ in _programs(tree)]
    while todo:
        path = todo.pop()
        if path in done:
            continue
        done.add(path)
        for name in reader.read(path).needed:
            library = next((lib / name for lib in _lib_dirs(tree) if (lib / name).exists()), None)
            if library:
                todo.append(library.resolve())
            else:
                lacking.add(name)
    return lacking


def _lib_dirs(tree: Path) -> list[Path]:
    """``lib/x86_64-linux-gnu`` or its like, in a tree before or after :func:`_arrange`."""
    return [*tree.glob("usr/lib/*-linux-gnu*"), *tree.glob("lib/*-linux-gnu*")]


def _programs(tree: Path) -> list[tuple[Path, Elf]]:
    """Apptainer's programs: ELF files that name an interpreter. libc.so.6 names one too."""
    programs = []
    for path in sorted(p for p in tree.rglob("*") if p.is_file() and not p.is_symlink()):
        if os.access(path, os.X_OK) and ".so" not in path.name:
            try:
                facts = reader.read(path)
            except reader.NotElf:
                continue
            if facts.interpreter:
                programs.append((path, facts))
    return programs


def _arrange(tree: Path) -> None:
    """From a package's layout to a prefix's."""
    for path in (tree / "usr").iterdir():
        path.rename(tree / path.name)
    (tree / "usr").rmdir()
    for unused in (*tree.glob("lib/*/gconv"), tree / "lib64", tree / "share" / "man"):
        shutil.rmtree(unused, ignore_errors=True)
    (tree / "var/lib/apptainer/mnt/session").mkdir(parents=True, exist_ok=True)
    # The starter lies below lib/TRIPLET and takes the prefix to be one level higher than it is:
    # without these it "failed to resolve session directory".
    for name in ("etc", "var"):
        (tree / "lib" / name).symlink_to(Path("..") / name)


def _share_loop_devices(tree: Path) -> None:
    """Ranks of one node then share a loop device, and so the kernel's cache of the image: each
    block is read and decompressed once, not once a rank (Apptainer's own advice for MPI)."""
    settings = tree / "etc" / "apptainer" / "apptainer.conf"
    text = settings.read_text("utf-8")
    settings.write_text(
        re.sub(r"(?m)^shared loop devices = no$", "shared loop devices = yes", text), "utf-8"
    )


def _point_at(tree: Path, final: Path) -> None:
    """Makes the programs start with the loader and libraries that will be in ``final``."""
    patchelf = find_patchelf()
    if not patchelf:
        raise fail("engine-no-patchelf", retry=RETRY)
    for path, facts in _programs(tree):
        loader = Path(facts.interpreter).name
        at = next(p for p in tree.rglob(loader) if p.parent.name.endswith("-linux-gnu"))
        lib = final / at.relative_to(tree).parent
        # DT_RPATH is inherited by libraries' own dependencies; DT_RUNPATH is for one level only,
        # and a second-level libm would come from the machine's older C library.
        rpath = ("--force-rpath", "--set-rpath", str(lib))
        run_checked(
            [patchelf, "--set-interpreter", lib / loader, *rpath, path],
            f"cannot patch {path.name}",
            f"`{RETRY}`",
        )


def _debian_mirror() -> str:
    """The mirror of this machine's Debian ``main``, from apt's own configuration."""
    row_format = "$(REPO_URI) $(RELEASE) $(COMPONENT)"
    listed = run(["apt-get", "indextargets", "--format", row_format, "Created-By: Packages"])
    rows = [row.split() for row in listed.stdout.splitlines()]
    mirrors = [
        row[0]
        for row in rows
        # Security and updates repositories have no matching unstable suite.
        if len(row) == 3 and row[2] == "main" and "-" not in row[1] and "security" not in row[0]
    ]
    debian = [m for m in mirrors if m.rstrip("/").endswith("debian")] or mirrors
    if debian and KEYRING.exists():
        return debian[0]
    if debian and listed.returncode:
        raise fail("engine-debian-list-failed", listed=listed, keyring=KEYRING, retry=RETRY)
    if debian:
        raise fail("engine-no-debian-keys", keyring=KEYRING, retry=RETRY)
    if listed.returncode:
        raise fail("engine-no-debian-release", listed=listed, other_way=OTHER_WAY)
    raise fail("engine-no-debian-main", other_way=OTHER_WAY)
