"""Shifter: setuid, with its own image store; binds only folders.

It takes LD_* out of the caller's environment, so those go by ``--env``. What the site's modules set
comes after that and would win, hence none of them; a user's ``--engine-arg=--module=gpu`` brings one
back. What is shown to a container must be visible in it under the same path: /tmp is, a home is where
the site says so (siteFs).
Source: NERSC/shifter, src/shifter.c, src/VolumeMap.c; each word was tried.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from fairlead.base.system import View
from fairlead.base.timeboxed import clear, first, settings
from fairlead.engines.find import named_or_on_path
from fairlead.engines.model import Call, Config, Driver, Engine, Takes, Words, prefix_of
from fairlead.engines.unfit import unfit_bind, unfit_image

VARIABLE = "FAIRLEAD_SHIFTER"
_NO_MODULE = "--module=none"
# Vendors' folders, which users may not bind; the site's configuration binds them (siteFs).
_BY_THE_SITE = ("/var/opt/", "/etc/opt/", "/dev/", "/sys/")
_UDIROOT = (
    "/etc/shifter/udiRoot.conf",
    "/etc/udiRoot.conf",
    "/etc/opt/cray/shifter/udiRoot.conf",
    "/opt/shifter/default/etc/shifter/udiRoot.conf",
    "/opt/shifter/etc/shifter/udiRoot.conf",
)


class Shifter(Driver):
    """NERSC's Shifter."""

    kind = "shifter"
    title = "Shifter"
    programs = ("shifter",)
    processes = ("shifter",)
    binds_files = False
    inside_variables = ("SHIFTER_RUNTIME",)
    srun_option = ("--image", "Shifter's plugin")

    def detect(self, environ: Mapping[str, str] = os.environ) -> Engine | None:
        """Shifter, where it is on PATH or named.

        Raises:
            FairleadError: exit code 2; the variable names something that cannot be executed.
        """
        path = named_or_on_path(VARIABLE, "shifter", environ)
        if path is None:
            return None
        why = "a module of the site would put its own MPI before the one that is staged"
        return Engine(
            "shifter", str(path), False, (_NO_MODULE,), ((_NO_MODULE, why),),
            binds_files=False, takes=Takes.NAME,
        )  # fmt: skip

    def words(self, engine: Engine, call: Call) -> Words:
        """``shifter --image=id:ID``.

        Raises:
            FairleadError: exit code 121; the image is none of Shifter's, or a path has a letter that
                separates paths.
        """
        given = [w for w in (*engine.options, *call.extra) if re.match(r"(--module|-m)", w)]
        # Of several, Shifter takes one: a module that the user or the profile names, or none.
        options = [o for o in engine.options if not (o == _NO_MODULE and len(given) > 1)]
        words = [engine.path, f"--image=id:{image_id(call.image)}", *options]
        for source, target, read_only in call.binds:
            if source == target and target.startswith(_BY_THE_SITE):
                continue
            for path in (source, target):
                if re.search(r"[\s:;,]", path):
                    raise unfit_bind(
                        "Shifter", path, "blanks, `:`, `;` and `,` end a path in --volume"
                    )
            words.append(f"--volume={source}:{target}" + (":ro" if read_only else ""))
        for name, value in {**call.env, **call.literal}.items():
            words.append(f"--env={name}={value}")
        if call.workdir:
            words.append(f"--workdir={call.workdir}")
        return Words((*words, *call.extra, *call.command), {})

    def setuid_files(self, view: View, real: str) -> tuple[str, ...] | None:
        return (real,)

    def configuration(self, view: View, real: str) -> Config | None:
        prefix = prefix_of(real)
        path = first(
            view, f"{prefix}/etc/shifter/udiRoot.conf", f"{prefix}/etc/udiRoot.conf", *_UDIROOT
        )
        if not path:
            return None
        text = (view.read(path) or "").replace("\\\n", " ")
        keys = (
            "imagePath",
            "defaultModules",
            "siteFs",
            "system",
            "imageGateway",
            "allowLocalChroot",
            "siteEnv",
            "sitePreMountHook",
        )
        found = {k: clear(v) for k, v in settings(text, keys).items() if v}
        modules = dict.fromkeys(re.findall(r"^module_([^_\s]+)_\w+\s*=", text, re.MULTILINE))
        if modules:
            found["modules"] = ", ".join(modules)
        return Config(path, found)


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
