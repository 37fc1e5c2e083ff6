"""Jupyter: a kernelspec whose kernel runs in an image.

Interrupts come as messages: a signal would go to the launcher.
Source: jupyter_client, docs/kernels.rst ("Kernel specs").
"""

from __future__ import annotations

import json
import re
from pathlib import PurePosixPath

from fairlead.base.errors import fail
from fairlead.export.model import ExportFile, Facts, Target, check_name, need_image, unfit


def files(facts: Facts) -> tuple[ExportFile, ...]:
    """``NAME/kernel.json``."""
    image = need_image(facts, "jupyter")
    own = re.sub(r"\.(sif|squashfs|sqsh|sandbox)$", "", PurePosixPath(image.name).name)
    name = facts.name or re.sub(r"[^a-z0-9._-]+", "-", f"fairlead-{own}".lower())
    why = "a kernel's is of letters, digits, `.`, `_`, `-`"
    check_name(name, r"[A-Za-z0-9._-]+", why, "Jupyter")
    if not image.facts.python:
        why = "it has no Python for a kernel"
        raise unfit(f"the image {image.name}", image.path, why, "Jupyter")
    # What was seen in the image counts, as well as its record, which may be older than what was added since.
    versions = image.installed.versions()
    known = {
        name
        for packages in (image.packages, versions)
        for kind in packages.values()
        for name in kind
    }
    if not known & {"ipykernel", "python3-ipykernel"}:
        raise fail("export-kernel" if known else "export-kernel-unknown", image=image)
    spec = {
        "argv": [
            *facts.fairlead, "run", "--quiet", "-n", "1", *facts.options, image.path, "--",
            "python3", "-m", "ipykernel_launcher", "-f", "{connection_file}",
        ],
        "display_name": f"Python in {own} (fairlead)",
        "language": "python",
        "interrupt_mode": "message",
        "metadata": {"debugger": False, "fairlead": {"image": image.name, "site": facts.site.name}},
    }  # fmt: skip
    goes = "jupyter kernelspec install --user, or a folder `kernels` of `jupyter --paths`"
    return (ExportFile(f"{name}/kernel.json", json.dumps(spec, indent=1) + "\n", goes),)


EXPORT = Target("a kernelspec whose kernel runs in the image", files)
