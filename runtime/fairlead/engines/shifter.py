"""Shifter: setuid, with its own image store; binds only folders.

It takes LD_* out of the caller's environment, so those go by ``--env``. What the site's modules set
comes after that and would win, hence none of them; a user's ``--engine-arg=--module=gpu`` brings one
back. What is shown to a container must be visible in it under the same path: /tmp is, a home is where
the site says so (siteFs).
It mounts ID of its own store, whatever the path of the image that fairlead looked into: ``opens`` says which file
that is, and it is compared with the other before a launch.
Source: NERSC/shifter, src/shifter.c, src/ImageData.c, src/VolumeMap.c; each word was tried.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fairlead.base.system import Machine, View
from fairlead.base.timeboxed import settings
from fairlead.engines.model import Call, Driver, Engine, Takes, Words, prefix_of, unfit_image

_NO_MODULE = "--module=none"
# Vendors' folders, which users may not bind; the site's configuration binds them (siteFs).
_BY_THE_SITE = ("/var/opt/", "/etc/opt/", "/dev/", "/sys/")
_CONFIG = "FAIRLEAD_SHIFTER_CONFIG"
_SUFFIXES = {"squashfs": ".squashfs", "ext4": ".ext4", "cramfs": ".cramfs", "xfs": ".xfs"}


class Shifter(Driver):
    kind = "shifter"
    title = "Shifter"
    programs = ("shifter",)
    variable = "FAIRLEAD_SHIFTER"
    processes = ("shifter",)
    takes = Takes.NAME
    binds_files = False
    options = (_NO_MODULE,)
    reasons = (
        (_NO_MODULE, "a module of the site would put its own MPI before the one that is staged"),
    )
    inside_variables = ("SHIFTER_RUNTIME",)
    srun_option = ("--image", "Shifter's plugin")
    config_files = (
        "{prefix}/etc/shifter/udiRoot.conf",
        "{prefix}/etc/udiRoot.conf",
        "/etc/shifter/udiRoot.conf",
        "/etc/udiRoot.conf",
        "/etc/opt/cray/shifter/udiRoot.conf",
        "/opt/shifter/default/etc/shifter/udiRoot.conf",
        "/opt/shifter/etc/shifter/udiRoot.conf",
    )
    config_keys = (
        "imagePath", "defaultModules", "siteFs", "system", "imageGateway", "allowLocalChroot", "siteEnv",
        "sitePreMountHook",
    )  # fmt: skip
    store_remedy = f"export {_CONFIG}=PATH, its udiRoot.conf, and leave out --engine-arg=--image"
    bind_limit = (r"[\s:;,]", "blanks, `:`, `;` and `,` end a path in --volume")

    def detect(self, environ: Mapping[str, str] = os.environ) -> Engine | None:
        program = super().detect(environ)
        if program is None:
            return None
        view = Machine(environ)
        config = self.config_file(view, view.real(program.path))
        store = settings(view.read(config) or "", ("imagePath",)).get("imagePath", "")
        return replace(program, config=config, store=store)

    def config_file(self, view: View, real: str) -> str:
        """Its udiRoot.conf: the one that the user names, whose path is compiled in, or the only one of the usual.

        Empty if none of them is there, or if several are and nothing tells which it reads.
        """
        if named := view.environ.get(_CONFIG, ""):
            return named
        compiled = re.findall(r"/[\w./+-]*/udiRoot\.conf(?![\w.])", view.read(real) or "")
        usual = [place.format(prefix=prefix_of(real)) for place in self.config_files]
        for places in (compiled, usual):
            there = {view.real(path): path for path in places if view.access(path, 0)}
            if len(there) == 1:
                return next(iter(there.values()))
        return ""

    def opens(self, engine: Engine, image: str, extra: Sequence[str] = ()) -> str:
        """``imagePath/ID.squashfs``, or what the FORMAT of ``imagePath/ID.meta`` makes of it; that file if it is missing."""
        identifier = image_id(image)
        if not engine.store or any(re.match(r"--image\b|-i", word) for word in extra):
            return ""
        view, path = Machine({}), f"{engine.store}/{identifier}"
        if not view.access(f"{path}.meta", os.F_OK):
            return f"{path}.meta"
        text = view.read(f"{path}.meta")
        kind = settings(text or "", ("FORMAT",), ":").get("FORMAT", "VFS")
        return "" if text is None else path + _SUFFIXES.get(kind, "/")

    def words(self, engine: Engine, call: Call) -> Words:
        """``shifter --image=id:ID``."""
        given = [w for w in (*engine.options, *call.extra) if re.match(r"(--module|-m)", w)]
        # Of several, Shifter takes one: a module that the user or the profile names, or none.
        options = [o for o in engine.options if not (o == _NO_MODULE and len(given) > 1)]
        words = [engine.path, f"--image=id:{image_id(call.image)}", *options]
        ours = [b for b in call.binds if b[0] != b[1] or not b[1].startswith(_BY_THE_SITE)]
        for source, target, read_only in self.binds_of(replace(call, binds=tuple(ours))):
            words.append(f"--volume={source}:{target}" + (":ro" if read_only else ""))
        words += [f"--env={name}={value}" for name, value in {**call.env, **call.literal}.items()]
        if call.workdir:
            words.append(f"--workdir={call.workdir}")
        return Words((*words, *call.extra, *call.command), {})

    def setuid_files(self, view: View, real: str) -> tuple[str, ...] | None:
        return (real,)

    def settings(self, view: View, path: str, text: str) -> dict[str, str]:
        text = text.replace("\\\n", " ")
        values = super().settings(view, path, text)
        modules = dict.fromkeys(re.findall(r"^module_([^_\s]+)_\w+\s*=", text, re.MULTILINE))
        return {**values, "modules": ", ".join(modules)} if modules else values


ENGINE = Shifter()


def image_id(image: str) -> str:
    """The id of ``FOLDER/ID.squashfs``, as Shifter keeps it.

    Raises:
        FairleadError: exit code 121; it is another kind of image.
    """
    path = Path(image)
    if path.suffix == ".squashfs":
        return path.stem
    raise unfit_image(
        "Shifter",
        image,
        "it opens what is in its own store: ID.squashfs with ID.meta next to it, in the folder that "
        "imagePath of its udiRoot.conf names",
        "fairlead build RECIPE --format shifter -o IMAGEPATH, then IMAGEPATH/RECIPE as IMAGE",
    )
