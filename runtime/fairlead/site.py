"""Site profiles: what a machine is known to be, read from ``sitecfg/*.toml``, and the evidence
that this machine is one of them.

``detect`` only looks: it runs nothing that can hang and needs no privileges.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fairlead import __version__
from fairlead.findings import ExitCode, fail
from fairlead.paths import atomic_write, bundled, cache_dir, config_dir
from fairlead.serial import from_json, to_json
from fairlead.suggest import suggest


@dataclass(frozen=True)
class Site:
    """What a plan, its checks and its proof need of a profile.

    Attributes:
        accepts: transports that a proof may find in use.
        start_s: seconds until every rank must have reported.
        require_signature: images must be signed with a trusted key.
        absent_programs, absent_paths: what must not be on a machine of this site.
    """

    name: str
    summary: str
    accepts: tuple[str, ...]
    start_s: float
    require_signature: bool = False
    absent_programs: tuple[str, ...] = ()
    absent_paths: tuple[str, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """One thing seen on this machine, and what it says."""

    subject: str
    seen: str
    meaning: str


@dataclass(frozen=True)
class Detected:
    """What :func:`detect` found.

    Attributes:
        profile: name of the matching profile, None when none matches.
        against: for each other profile, the facts that speak against it.
    """

    profile: str | None
    evidence: tuple[Evidence, ...]
    against: Mapping[str, tuple[str, ...]]


def profile_files(environ: Mapping[str, str] = os.environ) -> dict[str, Path]:
    """Every profile by name; the user's own folder wins over the bundled one."""
    files: dict[str, Path] = {}
    for folder in (bundled("sitecfg"), config_dir(environ) / "sites"):
        if folder.is_dir():
            files.update({p.stem: p for p in sorted(folder.glob("*.toml"))})
    return files


def profile_file(name: str, environ: Mapping[str, str] = os.environ) -> Path:
    """The file of the profile called ``name``, or ``name`` itself when it is a ``.toml`` path.

    Raises:
        FairleadError: exit code 2; there is no such profile.
    """
    files = profile_files(environ)
    path = Path(name) if name.endswith(".toml") else files.get(name)
    if path is None:
        raise fail(
            f"no site profile `{name}`",
            where="--site",
            why=suggest(name, files),
            remedy="fairlead site list",
            check="site-unknown",
            code=ExitCode.USAGE,
        )
    return path


def load_site(name: str, environ: Mapping[str, str] = os.environ) -> Site:
    """The profile called ``name``, checked.

    A profile that was found right once is remembered by its content, since checking it takes
    longer than everything else before a launch.

    Raises:
        FairleadError: exit code 2; it is unknown, or its file has mistakes.
    """
    path = profile_file(name, environ)
    try:
        content = path.read_bytes()
        key = hashlib.sha256(f"{__version__} ".encode() + content).hexdigest()[:20]
        cached = cache_dir(environ) / "facts" / f"site-{key}.json"
        return from_json(Site, json.loads(cached.read_text()))
    except (OSError, ValueError):
        pass
    from fairlead import siteprofile  # pydantic, only when it must be checked

    profile = siteprofile.read(path)
    site = Site(
        name=profile.site.name,
        summary=profile.site.summary,
        accepts=profile.fabric.accepts,
        start_s=float(profile.watchdog.start_s),
        require_signature=profile.images.require_signature,
        absent_programs=profile.detect.absent_programs,
        absent_paths=profile.detect.absent_paths,
    )
    with contextlib.suppress(OSError), atomic_write(cached, "w") as stream:
        json.dump(to_json(site), stream)
    return site


def detect(environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> Detected:
    """Which profile this machine is, and why."""
    evidence = [*_machine(root), *_scheduler(environ), *_fabric(root), *_engine(environ)]
    against: dict[str, tuple[str, ...]] = {}
    match: str | None = None
    for name in profile_files(environ):
        reasons = why_not(load_site(name, environ), environ, root)
        if reasons:
            against[name] = reasons
        elif match is None:
            match = name
    return Detected(match, tuple(evidence), against)


def why_not(
    profile: Site, environ: Mapping[str, str] = os.environ, root: Path = Path("/")
) -> tuple[str, ...]:
    """The facts of this machine that contradict ``profile``; empty when it fits."""
    programs = [
        f"`{program}` is on PATH"
        for program in profile.absent_programs
        if shutil.which(program, path=environ.get("PATH", ""))
    ]
    paths = [
        f"{path} exists" for path in profile.absent_paths if (root / path.lstrip("/")).exists()
    ]
    return (*programs, *paths)


def resolve(name: str | None, environ: Mapping[str, str] = os.environ) -> tuple[Site, str]:
    """The profile to use and why: ``--site``, ``$FAIRLEAD_SITE``, or what was detected.

    Raises:
        FairleadError: exit code 2; none was named and none fits. Guessing would be silent.
    """
    if name:
        return load_site(name, environ), "named by --site"
    if chosen := environ.get("FAIRLEAD_SITE"):
        return load_site(chosen, environ), "named by $FAIRLEAD_SITE"
    found = detect(environ)
    if found.profile is None:
        reasons = "\n".join(f"{site}: {'; '.join(why)}" for site, why in found.against.items())
        raise fail(
            "no site profile fits this machine",
            where=platform.node(),
            why=reasons,
            remedy="fairlead site detect; then name one with --site, e.g. `--site laptop` to use "
            "mpiexec on this node alone",
            check="site-detect",
            code=ExitCode.USAGE,
        )
    return load_site(found.profile, environ), "detected"


def _machine(root: Path) -> list[Evidence]:
    import archspec.cpu  # 30 ms, and only `site detect` wants it

    release = root / "etc/os-release"
    names = (
        dict(line.split("=", 1) for line in release.read_text().splitlines() if "=" in line)
        if release.is_file()
        else {}
    )
    cores = len(os.sched_getaffinity(0))
    userns = root / "proc/sys/user/max_user_namespaces"
    allowed = userns.read_text().strip() if userns.is_file() else "unknown"
    return [
        Evidence(
            "system", names.get("PRETTY_NAME", "unknown").strip('"'), f"kernel {platform.release()}"
        ),
        Evidence("processor", str(archspec.cpu.host()), f"{cores} cores for this process"),
        Evidence(
            "user namespaces",
            f"max_user_namespaces = {allowed}",
            "containers can start without root" if allowed != "0" else "only a setuid engine works",
        ),
    ]


def _scheduler(environ: Mapping[str, str]) -> list[Evidence]:
    known = {
        "srun": "Slurm",
        "qsub": "PBS or Cobalt",
        "bsub": "LSF",
        "jsrun": "LSF",
        "aprun": "ALPS",
        "flux": "Flux",
    }
    found = [(p, n) for p, n in known.items() if shutil.which(p, path=environ.get("PATH", ""))]
    if not found:
        return [
            Evidence(
                "scheduler", f"none of {', '.join(known)} on PATH", "ranks are started by mpiexec"
            )
        ]
    return [Evidence("scheduler", f"`{program}` on PATH", name) for program, name in found]


_DEVICES = {
    "dev/cxi0": "Slingshot",
    "sys/class/cxi": "Slingshot",
    "dev/kgni0": "Aries",
    "dev/infiniband": "InfiniBand or RoCE",
    "dev/hfi1_0": "Omni-Path",
    "dev/xpmem": "XPMEM",
    "dev/nvidia0": "NVIDIA GPU",
    "dev/kfd": "AMD GPU",
}


def _fabric(root: Path) -> list[Evidence]:
    found = [
        Evidence("device", f"/{path}", name)
        for path, name in _DEVICES.items()
        if (root / path).exists()
    ]
    return found or [
        Evidence(
            "fabric", "no fabric or GPU device node", "shared memory within the node, TCP beyond"
        )
    ]


def _engine(environ: Mapping[str, str]) -> list[Evidence]:
    from fairlead.engine.find import find_apptainer

    path = find_apptainer(environ)
    if path is None:
        return [
            Evidence(
                "engine", "no apptainer, no singularity", "`fairlead doctor --fix` installs one"
            )
        ]
    return [Evidence("engine", str(path), "Apptainer")]
