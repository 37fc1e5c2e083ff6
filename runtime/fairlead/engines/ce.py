"""CSCS' Container Engine: a part of ``srun``, which takes a file that describes the environment.

The file is an EDF: image, mounts, variables. It is written below the cache, which must be on a file system
that the nodes see. The shell that keeps a rank's exit code is then in the container too.
Source: eth-cscs/cscs-docs, docs/software/container-engine/edf.md and run.md.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from fairlead.base.paths import cache_dir
from fairlead.base.system import View
from fairlead.engines.model import Call, Driver, Engine, Takes, Words, need_squashfs, unfit_bind

_NAME = "The Container Engine"


class ContainerEngine(Driver):
    kind = "ce"
    title = "Container Engine"
    srun_option = ("--environment", "Container Engine")

    def detect(self, environ: Mapping[str, str] = os.environ) -> Engine | None:
        """Present if ``srun`` is and the site says so; only the output of ``srun --help`` would show it."""
        path = shutil.which("srun", path=environ.get("PATH", os.defpath))
        folder = str(cache_dir(environ) / "edf")
        takes = Takes.SQUASHFS
        return Engine("ce", path, False, (), (), takes=takes, folder=folder) if path else None

    def words(self, engine: Engine, call: Call) -> Words:
        """``srun --environment=FILE``.

        Raises:
            FairleadError: exit code 121; the image is not a squashfs, or the format cannot hold something.
        """
        need_squashfs(_NAME, call.image, "it opens a squashfs by its path")
        env = {**call.image_env, **call.env, **call.literal}
        text = edf(call.image, call.binds, env, workdir=call.workdir)
        name = f"fairlead-{hashlib.sha256(text.encode()).hexdigest()[:16]}.toml"
        file = str(Path(engine.folder, name))
        launcher = (f"--environment={file}", *engine.options, *call.extra)
        return Words(call.command, {}, launcher, {file: text})

    def srun_settings(self, view: View) -> dict[str, str]:
        names = ("EDF_PATH", "EDF_SYSTEM_SEARCH_PATH")
        return {name: value for name in names if (value := view.environ.get(name))}


ENGINE = ContainerEngine()


def edf(
    image: str,
    mounts: Iterable[tuple[str, str, bool]],
    env: Mapping[str, str],
    *,
    workdir: str = "",
    cxi: bool = False,
    annotations: Mapping[str, str] | None = None,
) -> str:
    """An environment definition file.

    Args:
        image: empty for an environment to build others on.
        mounts: ``(source, target, read only)``.
        cxi: the site's hook exchanges libfabric; the host's comes with its MPI otherwise.
        annotations: further ones, with dots between the parts of a name.
    Raises:
        FairleadError: exit code 121; a path has a colon, or a variable is empty.
    """
    lines = [f"image = {_text(image)}"] if image else []
    lines += [f"workdir = {_text(workdir)}"] if workdir else []
    listed = [f"    {_text(_mount(*mount))}," for mount in mounts]
    if listed:
        lines += ["mounts = [", *listed, "]"]
    if env:
        lines += ["", "[env]"]
    for name, value in sorted(env.items()):
        if not value or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise unfit_bind(_NAME, name, "an empty value takes the variable away")
        lines.append(f"{name} = {_text(value)}")
    lines += ["", "[annotations]"]
    every = {"com.hooks.cxi.enabled": str(cxi).lower(), **(annotations or {})}
    for name, value in every.items():
        if not re.fullmatch(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", name):
            raise unfit_bind(_NAME, name, "the parts of an annotation's name stand between dots")
        lines.append(f"{name} = {_text(value)}")
    return "\n".join(lines).lstrip("\n") + "\n"


def _mount(source: str, target: str, read_only: bool) -> str:
    for path in (source, target):
        if ":" in path:
            raise unfit_bind(_NAME, path, "a `:` separates source, target and flags of a mount")
    return f"{source}:{target}" + (":ro" if read_only else "")


def _text(value: str) -> str:
    """A TOML string in which nothing is expanded: ``$`` is written ``$$``."""
    # JSON's escapes are TOML's, but for the one of DEL.
    return json.dumps(value.replace("$", "$$"), ensure_ascii=False).replace("\x7f", "\\u007F")
