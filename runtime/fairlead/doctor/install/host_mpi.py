"""A host MPI from a wheel, for machines that have none: complete, relocatable, in its own prefix.

``fairlead.mpi.wheels`` pins which, and ``fairlead.mpi.host`` finds what is installed here. One prefix each, because
MPICH and Intel MPI both own ``lib/libmpi.so.12``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from fairlead.base.errors import fail
from fairlead.base.paths import atomic_folder, data_dir, locked
from fairlead.base.process import PYTHON, run_checked
from fairlead.base.progress import Progress, Silent
from fairlead.base.suggest import suggest
from fairlead.mpi.wheels import RETRY, Wheel, known_wheels


def install_wheel_mpi(
    name: str,
    version: str,
    progress: Progress | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Path:
    """Installs a pinned MPI below ``data_dir()/mpi``, or finds it there, and returns its prefix.

    Raises:
        FairleadError: exit code 2 when it is not one of :func:`known_wheels`; else pip's words.
    """
    pin = f"{name}=={version}"
    known = {wheel.pin: wheel for wheel in known_wheels().wheel}
    if pin not in known:
        raise fail(
            "host-mpi-no-pinned-wheel",
            pin=pin,
            suggestion=suggest(pin, known),
            default=known_wheels().default,
        )
    prefix = data_dir(environ) / "mpi" / f"{name}-{version}"
    with (
        (progress or Silent()).stage(f"host MPI {name} {version}") as stage,
        locked(prefix.parent / ".lock", lambda: stage.note("waiting for another installation")),
    ):
        if not prefix.is_dir():
            with atomic_folder(prefix) as tree:
                _pip_install(known[pin], tree, environ)
        stage.result(str(prefix))
    return prefix


def _pip_install(wheel: Wheel, tree: Path, environ: Mapping[str, str]) -> None:
    pins = tree.with_name("requirements.txt")
    hashes = " ".join(f"--hash=sha256:{digest}" for digest in wheel.sha256)
    pins.write_text(f"{wheel.pin} {hashes}\n", "utf-8")
    options = (
        "--quiet", "--disable-pip-version-check", "--no-deps", "--ignore-installed", "--no-compile",
        "--no-warn-script-location", "--only-binary", ":all:", "--require-hashes",
    )  # fmt: skip
    run_checked(
        [*PYTHON, "-m", "pip", "install", *options, "--prefix", tree, "-r", pins],
        f"cannot install the host MPI {wheel.pin}",
        f"check the network and pip's index, then `{RETRY}`",
        environ={**environ, "PIP_USER": "0"},  # a user's own default, which excludes --prefix
    )
