"""Sarus: images by name from its own repository; its hooks bring a site's MPI with ``--mpi``.

Here the swap is fairlead's, so ``--mpi`` is not given. Sarus passes on the caller's environment; the
image's comes over it, and ``--env`` over both.
Source: eth-cscs/sarus, src/cli/CommandRun.hpp, src/libsarus/MountParser.cpp, src/common/Config.cpp.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from fairlead.base.system import View
from fairlead.base.timeboxed import clear, first
from fairlead.engines.find import named_or_on_path
from fairlead.engines.model import Call, Config, Driver, Engine, Takes, Words, prefix_of
from fairlead.engines.unfit import unfit_bind, unfit_image


class Sarus(Driver):
    """CSCS' Sarus."""

    kind = "sarus"
    title = "Sarus"
    programs = ("sarus",)
    processes = ("sarus",)

    def detect(self, environ: Mapping[str, str] = os.environ) -> Engine | None:
        """Sarus, where it is on PATH."""
        path = named_or_on_path("FAIRLEAD_SARUS", "sarus", environ)
        return Engine("sarus", str(path), False, (), (), takes=Takes.NAME) if path else None

    def words(self, engine: Engine, call: Call) -> Words:
        """``sarus run``.

        Raises:
            FairleadError: exit code 121; a path has a letter that separates options.
        """
        words = [engine.path, "run", *engine.options]
        for source, target, read_only in call.binds:
            for path in (source, target):
                if re.search(r"[,=]", path):
                    raise unfit_bind("Sarus", path, "`,` and `=` separate the parts of --mount")
            end = ",readonly" if read_only else ""
            words.append(f"--mount=type=bind,source={source},destination={target}{end}")
        for name, value in {**call.env, **call.literal}.items():
            words.append(f"--env={name}={value}")
        if call.workdir:
            words.append(f"--workdir={call.workdir}")
        return Words((*words, *call.extra, image_name(call.image), *call.command), {})

    def setuid_files(self, view: View, real: str) -> tuple[str, ...] | None:
        return (real,)

    def configuration(self, view: View, real: str) -> Config | None:
        path = first(
            view,
            f"{prefix_of(real)}/etc/sarus.json",
            "/opt/sarus/etc/sarus.json",
            "/etc/sarus/sarus.json",
            "/opt/sarus/default/etc/sarus.json",
        )
        if not path:
            return None
        try:
            data = json.loads(view.read(path) or "")
        except ValueError:
            return Config(path, {"": "not readable, or no JSON"})
        if not isinstance(data, dict):
            return Config(path, {"": "no JSON object"})
        keys = (
            "securityChecks",
            "OCIBundleDir",
            "rootfsFolder",
            "prefixDir",
            "hooksDir",
            "localRepositoryBaseDir",
            "centralizedRepositoryDir",
            "ramFilesystemType",
            "mksquashfsOptions",
        )
        found = {k: clear(str(data[k])) for k in keys if k in data}
        hooks = [
            n.removesuffix(".json")
            for n in view.listdir(str(data.get("hooksDir", "")))
            if n.endswith(".json")
        ]
        if hooks:
            found["hooks"] = ", ".join(hooks)
        return Config(path, found)


ENGINE = Sarus()


def image_name(image: str) -> str:
    """``SERVER/NAMESPACE/NAME:TAG`` of the squashfs that Sarus keeps of it.

    Its repository has ``images/SERVER/NAMESPACE/NAME/TAG.squashfs``.

    Raises:
        FairleadError: exit code 121; it is another kind of file.
    """
    parts = Path(image).parts
    if "images" in parts and image.endswith(".squashfs"):
        last = len(parts) - parts[::-1].index("images")
        name = parts[last:]
        if len(name) >= 4:
            return f"{'/'.join(name[:-1])}:{name[-1].removesuffix('.squashfs')}"
    raise unfit_image(
        "Sarus",
        image,
        "it opens what is in its own repository: images/SERVER/NAMESPACE/NAME/TAG.squashfs below "
        ".sarus, whose path is IMAGE here",
        "fairlead push IMAGE docker://HOST/REPOSITORY:TAG, then sarus pull HOST/REPOSITORY:TAG",
    )
