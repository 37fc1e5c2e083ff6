"""Apptainer: which options it needs on this machine, and the command line that runs a plan.

Facts behind the options: a root that lacks CAP_SYS_RESOURCE (a container's or a VM's root) is
refused by Apptainer unless that capability is dropped or a user namespace is made; unprivileged
Apptainer makes a user namespace *a rank*, and then no rank may look into another's memory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from fairlead.engine.find import find_apptainer
from fairlead.engine.model import Call, Engine, Words

CAP_SYS_RESOURCE = 24


class Apptainer:
    """Apptainer and SingularityCE."""

    kind = "apptainer"

    def detect(self, environ: Mapping[str, str] = os.environ) -> Engine | None:
        """Apptainer, for this user.

        Raises:
            FairleadError: exit code 2; a variable names something that cannot be executed.
        """
        path = find_apptainer(environ)
        return describe(path, os.geteuid(), _capabilities()) if path else None

    def words(self, engine: Engine, call: Call) -> Words:
        """``apptainer exec``. Variables go by the environment, since ``--env A=1,b`` splits at commas."""
        # Quiet: a line of INFO a rank about optional helpers is no news, warnings still come through.
        words = [engine.path, "--quiet", "exec", *engine.options]
        for source, target, read_only in call.binds:
            words += ["--bind", f"{_bind(source)}:{_bind(target)}" + (":ro" if read_only else "")]
        if call.workdir:
            words += ["--pwd", call.workdir]
        return Words(
            (*words, *call.extra, call.image, *call.command),
            _environment(engine, call.env, call.literal),
        )


DRIVER = Apptainer()


def describe(path: Path, uid: int, capabilities: int) -> Engine:
    """How the Apptainer at ``path`` must be called by ``uid`` with an effective capability set."""
    if uid == 0:
        if capabilities >> CAP_SYS_RESOURCE & 1:
            return Engine("apptainer", str(path), False, (), ())
        return Engine(
            "apptainer",
            str(path),
            False,
            ("--drop-caps", "CAP_SYS_RESOURCE"),
            (
                (
                    "--drop-caps CAP_SYS_RESOURCE",
                    "this root lacks that capability, and Apptainer refuses to start when it asks for it",
                ),
            ),
        )
    if _is_setuid(path):
        return Engine("apptainer", str(path), False, (), ())
    return Engine(
        "apptainer",
        str(path),
        True,
        ("--userns",),
        (("--userns", "this Apptainer is not setuid, so a user namespace stands in for root"),),
    )


def _is_setuid(path: Path) -> bool:
    real = path.resolve()
    starters = [
        real.parent.parent / "libexec" / real.name / "bin" / "starter-suid",
        *real.parent.parent.glob("lib/*/apptainer/bin/starter-suid"),
    ]
    return any(s.exists() and s.stat().st_mode & 0o4000 and s.stat().st_uid == 0 for s in starters)


def _capabilities() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def _bind(path: str) -> str:
    """A path inside a --bind, where a comma begins the next bind and a colon the next field."""
    return re.sub(r"([,:])", r"\\\1", path)


def _environment(
    engine: Engine, values: Mapping[str, str], literal: Mapping[str, str]
) -> dict[str, str]:
    """``values`` as the engine takes them.

    SingularityCE knows the old prefix only; Apptainer's own `singularity` is a link to Apptainer.
    """
    old = Path(engine.path).resolve().name == "singularity"
    prefix = "SINGULARITYENV_" if old else "APPTAINERENV_"
    found = {prefix + name: value for name, value in {**values, **literal}.items()}
    # Apptainer runs `export A="value"`; the user's own APPTAINERENV_ variables may rely on it.
    if any(set(value) & set('$`"\\') for value in literal.values()):
        found["SINGULARITY_NO_EVAL" if old else "APPTAINER_NO_EVAL"] = "1"
    return found
