"""Sarus: images by name from its own repository; its hooks bring a site's MPI with ``--mpi``.

Here the swap is fairlead's, so ``--mpi`` is not given. Sarus passes on the caller's environment; the
image's comes over it, and ``--env`` over both.
It mounts what its repository has of a name: ``opens`` says which file that is.
Source: eth-cscs/sarus, src/cli/CommandRun.hpp, src/libsarus/MountParser.cpp, src/common/Config.cpp.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fairlead.base import bounded_json
from fairlead.base.system import Machine, View
from fairlead.base.timeboxed import clear
from fairlead.engines.model import Call, Driver, Engine, Takes, Words, unfit_image

_CENTRAL = "--centralized-repository"


class Sarus(Driver):
    kind = "sarus"
    title = "Sarus"
    programs = ("sarus",)
    variable = "FAIRLEAD_SARUS"
    processes = ("sarus",)
    takes = Takes.NAME
    config_files = (
        "{prefix}/etc/sarus.json",
        "/opt/sarus/etc/sarus.json",
        "/etc/sarus/sarus.json",
        "/opt/sarus/default/etc/sarus.json",
    )
    config_keys = (
        "securityChecks", "OCIBundleDir", "rootfsFolder", "prefixDir", "hooksDir", "localRepositoryBaseDir",
        "centralizedRepositoryDir", "ramFilesystemType", "mksquashfsOptions",
    )  # fmt: skip
    store_remedy = (
        "make PREFIX/etc/sarus.json of its installation readable; it names the repository"
    )
    bind_limit = (r"[,=]", "`,` and `=` separate the parts of --mount")

    def detect(self, environ: Mapping[str, str] = os.environ) -> Engine | None:
        program = super().detect(environ)
        if program is None:
            return None
        view = Machine(environ)
        config = self.configuration(view, view.real(program.path))
        if config is None:
            return program
        base = config.settings.get("localRepositoryBaseDir", "")
        store = f"{base}/{view.user}/.sarus" if base else ""
        return replace(program, config=config.path, store=store)

    def opens(self, engine: Engine, image: str, extra: Sequence[str] = ()) -> str:
        """``images/SERVER/NAMESPACE/NAME/TAG.squashfs`` in the user's repository, or in the central one."""
        name, _, tag = image_name(image).rpartition(":")
        store = engine.store
        if _CENTRAL in (*engine.options, *extra):
            text = Machine({}).read(engine.config) or ""
            store = self.settings(Machine({}), engine.config, text).get(
                "centralizedRepositoryDir", ""
            )
        return f"{store}/images/{name}/{tag}.squashfs" if store else ""

    def words(self, engine: Engine, call: Call) -> Words:
        """``sarus run``."""
        words = [engine.path, "run", *engine.options]
        for source, target, read_only in self.binds_of(call):
            end = ",readonly" if read_only else ""
            words.append(f"--mount=type=bind,source={source},destination={target}{end}")
        words += [f"--env={name}={value}" for name, value in {**call.env, **call.literal}.items()]
        words += ["--tty"] if call.terminal else []
        if call.workdir:
            words.append(f"--workdir={call.workdir}")
        return Words((*words, *call.extra, image_name(call.image), *call.command), {})

    def setuid_files(self, view: View, real: str) -> tuple[str, ...] | None:
        return (real,)

    def settings(self, view: View, path: str, text: str) -> dict[str, str]:
        try:
            data = bounded_json.loads(text)
        except ValueError:
            return {"": "not readable, or no JSON"}
        if not isinstance(data, dict):
            return {"": "no JSON object"}
        values = {k: clear(str(data[k])) for k in self.config_keys if k in data}
        names = view.listdir(str(data.get("hooksDir", "")))
        hooks = [name.removesuffix(".json") for name in names if name.endswith(".json")]
        return {**values, "hooks": ", ".join(hooks)} if hooks else values


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
