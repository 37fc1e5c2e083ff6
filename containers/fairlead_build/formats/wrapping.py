"""What every wrapping of an image says of it: one value, rendered once for each format.

An engine reads variables and the default command from where its own format keeps them: a SIF from
a script in ``/.singularity.d``, an OCI image from its config, Shifter from ``.meta``. All of them
come from here, and this comes from the record in the built SIF.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead.base.errors import fail
from fairlead.image.sif import read_sif

# What runs in an image when no command is given.
COMMAND = ("/bin/bash",)
# In how many parts an image can be shared, lowest first; `oci.py` makes a layer of each.
PARTS = ("Debian packages", "Python, MPI and files", "fairlead")
# What ldconfig writes knows of libraries from all over the tree.
_LOADER = re.compile(r"etc/ld\.so\.(cache|conf\.d/fairlead-)")
_ADDED = ("opt", "usr/local", "srv")


@dataclass(frozen=True)
class Wrapping:
    """What the wrappings of one image say.

    Attributes:
        name: of the recipe, ``mpi-base:openmpi``.
        epoch: seconds since 1970, the time of all that has one.
        python: the Python prefix, relative to the root; empty without one.
        site: where its modules lie, likewise.
        added: paths that the recipe's own packages, sources and files brought, likewise.
        digests: sha256, hex, of ``lock``, ``tree``, ``squashfs`` and ``sif``.
        bytes: of all its files.
    """

    name: str
    summary: str
    version: str
    architecture: str
    epoch: int
    env: Mapping[str, str]
    labels: Mapping[str, str]
    python: str
    site: str
    added: tuple[str, ...]
    digests: Mapping[str, str]
    bytes: int = 0
    command: tuple[str, ...] = COMMAND

    def part(self, path: str) -> int:
        """Which of :data:`PARTS` a path, relative to the root, belongs to."""
        if _below(path, (".fairlead", ".singularity.d")):
            return 2
        if self.site and _below(path, (self.site,)):
            first = path[len(self.site) + 1 :].partition("/")[0]
            if re.fullmatch(r"fairlead(_build)?|fairlead-[^/]+\.dist-info", first):
                return 2
        if self.python and path == f"{self.python}/bin/fairlead":
            return 2
        return 1 if _LOADER.match(path) or _below(path, self.added) else 0


def _below(path: str, folders: tuple[str, ...]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def labels_of(record: Mapping[str, Any]) -> dict[str, str]:
    """All labels of an image: the recipe's own, and where it comes from."""
    return {
        **record["labels"],
        "org.fairlead.recipe": record["recipe"],
        "org.fairlead.lock.sha256": record["lock_sha256"],
        "org.fairlead.version": record["fairlead_version"],
    }


def as_json(document: Mapping[str, Any]) -> bytes:
    """A document as it lies in images."""
    return json.dumps(document, indent=1, sort_keys=True).encode() + b"\n"


_GPU_LIBRARIES = """\
for library in /.singularity.d/libs/*; do
    if [ -e "$library" ]; then
        export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/.singularity.d/libs"
        break
    fi
done
unset library
"""


def engine_files(
    env: Mapping[str, str], labels: Mapping[str, str], run: str, *, note: str = ""
) -> dict[str, tuple[bytes, int]]:
    """What Apptainer reads of an image in ``/.singularity.d``: content and mode by path.

    Args:
        run: the shell lines that run when no program is named.
        note: a comment above the variables.
    """
    variables = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items())
    # Apptainer adds APPTAINERENV_* variables when it comes to a script of this very name: without
    # one, a run's LD_LIBRARY_PATH would be dropped silently. Where it has none, nothing leads to what --nv and --rocm bring.
    hook = f"# Apptainer adds the caller's variables after this file.\n{_GPU_LIBRARIES}".encode()
    return {
        ".singularity.d/env/90-environment.sh": (f"{note}{variables}".encode(), 0o644),
        ".singularity.d/env/99-base.sh": (hook, 0o644),
        ".singularity.d/labels.json": (as_json(labels), 0o644),
        ".singularity.d/runscript": (f"#!/bin/sh\n{run}".encode(), 0o755),
    }


def wrapping_of(sif: Path, sif_sha256: str) -> Wrapping:
    """What the wrappings of the image in ``sif`` say, from its record.

    Raises:
        FairleadError: it is not a valid SIF, or this fairlead did not build it.
    """
    record = read_sif(sif).document("image.json") or {}
    try:
        python = record["python"]
        prefixes = [python.get("prefix", ""), record["mpi"].get("prefix", "")]
        inside = [posixpath.relpath(p, "/") for p in (*prefixes, *record["files"]) if p]
        digests = {name: record[f"{name}_sha256"] for name in ("lock", "tree", "squashfs")}
        return Wrapping(
            name=record["recipe"],
            summary=record["summary"],
            version=record["fairlead_version"],
            architecture=record["architecture"],
            epoch=record["source_date_epoch"],
            env=record["env"],
            labels=labels_of(record),
            python=python.get("prefix", "").lstrip("/"),
            site=python.get("site", "").lstrip("/"),
            added=tuple(sorted({*inside, *_ADDED})),
            digests={**digests, "sif": sif_sha256},
            bytes=record["tree_bytes"],
        )
    except (KeyError, TypeError, AttributeError) as exc:
        why = f"its record lacks {exc}"
        raise fail("image-record-not-convertible", sif=sif, why=why) from None
