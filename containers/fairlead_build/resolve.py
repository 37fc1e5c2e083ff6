"""Makes a lock: apt and pip say which versions a recipe means today.

apt works in a private, empty root against the signed index of this machine's own mirror; pip is
told to resolve for the image's Python and glibc instead of this machine's.
"""

from __future__ import annotations

import email.utils
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from fairlead.findings import ExitCode, FairleadError, Finding, error, fail
from fairlead.progress import Progress
from fairlead.suggest import suggest
from fairlead_build import fetch
from fairlead_build.aptsources import AptSource, debian_sources
from fairlead_build.lock import Deb, Inputs, Lock, Wheel, inputs_of, write_lock
from fairlead_build.ownwheel import runtime_requirements
from fairlead_build.proc import clean_environment, run, tool
from fairlead_build.recipe import LoadedRecipe
from fairlead_build.store import Cache
from fairlead_build.tools import architecture, versions

# Makes bookworm's /usr merge explicit; otherwise `usrmerge` and a whole Perl would be drawn in.
_ALWAYS = ("usr-is-merged",)


def lock_recipe(loaded: LoadedRecipe, progress: Progress, cache: Cache) -> Lock:
    """Resolves a recipe against today's indexes and writes its lock.toml.

    Raises:
        FairleadError: a package does not exist, versions contradict each other, an index cannot be
            reached, or this Python cannot resolve for the image's.
    """
    cache.make()
    runtime = runtime_requirements() if loaded.recipe.python else ()
    inputs = inputs_of(loaded.recipe, runtime)
    if inputs.python:
        _same_minor(inputs.python)
    arch = architecture()
    with progress.stage("resolve Debian packages") as stage:
        debs, epoch = _resolve_debs(inputs, arch, loaded)
        stage.result(f"{len(debs)} packages, {sum(d.size for d in debs) / 1e6:.0f} MB")
    wheels: tuple[Wheel, ...] = ()
    if inputs.python:
        glibc = _upstream(next(d.version for d in debs if d.name == "libc6"))
        with progress.stage("resolve Python packages") as stage:
            found = _resolve_wheels(inputs, arch, glibc, loaded)
            stage.result(f"{len(found)} wheels")
        # pip's report has no sizes, and a build needs the files anyway.
        sizes = fetch.fetch_wheels(
            found, target_of(inputs.python, arch, glibc), cache, progress, loaded.given
        )
        wheels = tuple(w.model_copy(update={"size": sizes[w.sha256]}) for w in found)
    lock = Lock(
        version=1,
        recipe=loaded.name,
        architecture=arch,
        source_date_epoch=epoch,
        inputs_sha256=inputs.digest,
        inputs=inputs,
        tools=versions(),
        deb=debs,
        wheel=wheels,
    )
    write_lock(lock, loaded.lock_path)
    return lock


def _same_minor(wanted: str) -> None:
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    if running != wanted:
        raise fail(
            f"this is Python {running}, the image has Python {wanted}",
            where=sys.executable,
            why="conditions such as `python_version < '3.12'` would be decided for the wrong Python",
            remedy=f"lock from an environment made with python{wanted}: "
            f"`python{wanted} -m venv ENV && ENV/bin/pip install 'fairlead[build]'`; building needs none",
            check="python-minor",
            code=ExitCode.USAGE,
        )


# --- Debian -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _AptRoot:
    """A private apt: its own lists, status and sources; this machine's keyrings and proxies."""

    folder: Path
    environment: dict[str, str]


def _resolve_debs(
    inputs: Inputs, arch: Literal["amd64", "arm64"], loaded: LoadedRecipe
) -> tuple[tuple[Deb, ...], int]:
    refused: list[str] = []
    for source in debian_sources(inputs.suite, inputs.components):
        with tempfile.TemporaryDirectory(prefix="fairlead-apt-") as name:
            root = _apt_root(Path(name), source, inputs, arch)
            run(
                ["apt-get", "update", "-qq", "-o", "APT::Update::Error-Mode=any"],
                env=root.environment,
                doing=f"read the index of Debian {inputs.suite}",
                remedy=f"check {source.origin} and the network, then `fairlead recipe lock {loaded.given}`",
            )
            release = _release(root)
            if release.get("Origin") != "Debian" or inputs.suite not in (
                release.get("Codename"),
                release.get("Suite"),
            ):
                refused.append(
                    f"{source.origin} offers {release.get('Origin', 'an unnamed origin')}"
                )
                continue
            debs = tuple(_solve(root, inputs, arch, loaded))
            date = email.utils.parsedate_to_datetime(release["Date"])
            return debs, int(date.timestamp())
    raise fail(
        f"no configured archive is Debian {inputs.suite}",
        where="/etc/apt",
        why="; ".join(refused),
        remedy="export FAIRLEAD_INDEX_DEBIAN=URL of a Debian mirror",
        check="apt-source-missing",
    )


def _apt_root(folder: Path, source: AptSource, inputs: Inputs, arch: str) -> _AptRoot:
    for name in ("state/lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    (folder / "status").touch()
    (folder / "debian.sources").write_text(source.narrowed(inputs.suite, inputs.components))
    settings = {
        "Dir::Etc::sourcelist": folder / "debian.sources",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "Dir::State": folder / "state",
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
        "APT::Architecture": arch,
        "APT::Install-Recommends": "false",
        "APT::Install-Suggests": "false",
        "Acquire::Languages": "none",
        "APT::Sandbox::User": "root",
    }
    lines = ["#clear APT::Architectures;", f'APT::Architectures "{arch}";']
    lines += [f'{key} "{value}";' for key, value in settings.items()]
    (folder / "apt.conf").write_text("\n".join(lines) + "\n")
    return _AptRoot(folder, {**_inherited(), "APT_CONFIG": str(folder / "apt.conf")})


def _inherited() -> dict[str, str]:
    """A clean environment that still knows this machine's proxies and certificates."""
    kept = [
        n
        for n in os.environ
        if n.lower().endswith("_proxy") or n in ("SSL_CERT_FILE", "SSL_CERT_DIR")
    ]
    return clean_environment({name: os.environ[name] for name in kept})


def _release(root: _AptRoot) -> dict[str, str]:
    for path in sorted((root.folder / "state" / "lists").glob("*Release")):
        pairs = re.findall(
            r"^([A-Za-z-]+): (.*)$", path.read_text("utf-8", "replace"), re.MULTILINE
        )
        return dict(pairs)
    return {}


def _solve(root: _AptRoot, inputs: Inputs, arch: str, loaded: LoadedRecipe) -> Iterator[Deb]:
    index = _index(root)
    essential = sorted(
        {name for (name, _), fields in index.items() if fields.get("Essential") == "yes"}
    )
    known = {name for name, _ in index}
    if unknown := [name for name in inputs.apt if name not in known]:
        raise FairleadError(
            [_unknown_package(name, known, inputs, loaded) for name in unknown], ExitCode.USAGE
        )
    argv = ["apt-get", "install", "-s", "-y", "-qq", *essential, *_ALWAYS, *inputs.apt]
    told = run(
        argv,
        env=root.environment,
        doing=f"resolve the Debian packages of recipe `{loaded.name}`",
        remedy=f"edit packages.apt, then `fairlead recipe lock {loaded.given}`",
    ).decode()
    for name, version in sorted(set(re.findall(r"^Inst (\S+) \((\S+) ", told, re.MULTILINE))):
        fields = index[name.split(":")[0], version]
        yield Deb.model_validate(
            {
                "name": fields["Package"],
                "version": version,
                "architecture": fields["Architecture"],
                "size": int(fields["Size"]),
                "sha256": fields["SHA256"],
                "path": fields["Filename"],
                "index": index_name(inputs),
            }
        )


def _unknown_package(name: str, known: set[str], inputs: Inputs, loaded: LoadedRecipe) -> Finding:
    hint = suggest(name, known)
    return error(
        f"Debian {inputs.suite} has no package `{name}`",
        where=f"{loaded.folder / 'recipe.toml'}, packages.apt",
        why=hint if hint.startswith("Did") else f"it is not in {index_name(inputs)}",
        remedy=f"edit packages.apt, then `fairlead recipe lock {loaded.given}`",
        check="apt-unknown",
    )


def index_name(inputs: Inputs) -> str:
    """``Debian bookworm main``: how a lock names an archive."""
    return f"Debian {inputs.suite} {' '.join(inputs.components)}"


def _index(root: _AptRoot) -> dict[tuple[str, str], dict[str, str]]:
    """The signed Packages index, by name and version."""
    wanted = {"Package", "Version", "Architecture", "Essential", "Filename", "Size", "SHA256"}
    index = {}
    for path in sorted((root.folder / "state" / "lists").glob("*_Packages*")):
        text = run(
            [tool("apt-helper"), "cat-file", path],
            env=root.environment,
            doing="read apt's index",
            remedy="run the same command again",
        ).decode("utf-8", "replace")
        for stanza in text.split("\n\n"):
            pairs = (
                line.split(": ", 1)
                for line in stanza.split("\n")
                if ": " in line and line[0] != " "
            )
            fields = {key: value for key, value in pairs if key in wanted}
            if "Package" in fields:
                index[fields["Package"], fields["Version"]] = fields
    return index


def _upstream(version: str) -> str:
    """``2.36-9+deb12u10`` -> ``2.36``."""
    return re.sub(r"^\d+:", "", version).split("-")[0]


# --- Python -----------------------------------------------------------------------------------


def target_of(python: str, arch: str, glibc: str) -> tuple[str, ...]:
    """pip's options that describe the image instead of this machine, best platform first."""
    machine = {"amd64": "x86_64", "arm64": "aarch64"}[arch]
    newest = int(glibc.split(".")[1])
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(newest, 4, -1)]
    legacy = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
    for minor, name in legacy.items():
        at = f"manylinux_2_{minor}_{machine}"
        platforms.insert(platforms.index(at) + 1, f"{name}_{machine}")
    platforms.append(f"linux_{machine}")
    options = ["--only-binary=:all:", "--implementation=cp", f"--python-version={python}"]
    options += [f"--abi=cp{python.replace('.', '')}"]
    return (*options, *(f"--platform={name}" for name in platforms))


def _resolve_wheels(inputs: Inputs, arch: str, glibc: str, loaded: LoadedRecipe) -> list[Wheel]:
    found = _pip_report(list(inputs.pip), "python", inputs, arch, glibc, loaded)
    kind, _, pin = inputs.mpi.partition(":")
    if kind == "wheel":
        mpi = _pip_report([pin], "mpi", inputs, arch, glibc, loaded)
        if clash := {w.name for w in mpi} & {w.name for w in found}:
            raise fail(
                f"`{sorted(clash)[0]}` would be installed twice",
                where=str(loaded.folder / "recipe.toml"),
                why="packages.pip draws in the MPI of [mpi]; inside the Python prefix it could never be swapped",
                remedy=f"take it out of packages.pip, then `fairlead recipe lock {loaded.given}`",
                check="mpi-in-python",
            )
        found += mpi
    found += _pip_report(["pip"], "installer", inputs, arch, glibc, loaded)
    return found


def _pip_report(
    requirements: list[str], role: str, inputs: Inputs, arch: str, glibc: str, loaded: LoadedRecipe
) -> list[Wheel]:
    with tempfile.TemporaryDirectory(prefix="fairlead-pip-") as folder:
        report = Path(folder) / "report.json"
        argv = [
            *fetch.pip(),
            "install",
            "--dry-run",
            "--ignore-installed",
            "--quiet",
            "--report",
            report,
            *target_of(inputs.python, arch, glibc),
            *requirements,
        ]
        run(
            argv,
            env=fetch.pip_environment(),
            doing=f"resolve the Python packages of recipe `{loaded.name}`",
            remedy=f"edit packages.pip, then `fairlead recipe lock {loaded.given}`",
        )
        items = json.loads(report.read_text("utf-8"))["install"]
    wheels = []
    for item in items:
        place, facts = item["download_info"], item["metadata"]
        wheels.append(
            Wheel.model_validate(
                {
                    "name": facts["name"],
                    "version": facts["version"],
                    "file": unquote(urlsplit(place["url"]).path.rsplit("/", 1)[1]),
                    "size": 1,
                    "sha256": place["archive_info"]["hashes"]["sha256"],
                    "index": "PyPI",
                    "role": role,
                }
            )
        )
    return sorted(wheels, key=lambda w: w.name.lower())
