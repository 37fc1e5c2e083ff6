"""Stands in for ``mpi_hook`` and ``glibc_hook`` of Sarus and for ``pc_injection_hook`` of Sarus Suite, which no package
registry has: does what their documents say. A real Podman and runc start it.

Sarus' hooks, of the stage createContainer, mount into the container that is being made: libraries of MPI_LIBS and
GLIBC_LIBS over those of the same name and major version, MPI_DEPENDENCY_LIBS into /usr/lib, BIND_MOUNTS at their own
paths. The other, of the stage precreate, reads the container's configuration and writes it with more mounts and
variables: ``--lib`` over each library of its name and major version, ``--dependency-lib`` in /run/pc-injection, which
is on LD_LIBRARY_PATH.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path


def alike(ldconfig: str, root: str, library: str) -> list[str]:
    """The container's libraries with the name and the major version of one of the host."""
    name = re.match(r".+?\.so\.\d+", Path(library).name)
    words = [ldconfig, "-r", root, "-p"]
    listed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^\s+(\S+) .* => (\S+)$", listed, re.MULTILINE)
    return [path for other, path in found if name and other == name[0]]


def of_sarus() -> None:
    bundle = json.load(sys.stdin)["bundle"]
    root = json.loads(Path(bundle, "config.json").read_text())["root"]["path"]
    ldconfig = os.environ["LDCONFIG_PATH"]

    def listed(name: str) -> list[str]:
        return list(filter(None, os.environ.get(name, "").split(":")))

    binds = [
        (library, place)
        for library in listed("MPI_LIBS") + listed("GLIBC_LIBS")
        for place in alike(ldconfig, root, library)
    ]
    binds += [(lib, f"/usr/lib/{Path(lib).name}") for lib in listed("MPI_DEPENDENCY_LIBS")]
    binds += [(path, path) for path in listed("BIND_MOUNTS")]
    for source, target in binds:
        place = Path(root, target.lstrip("/"))
        place.parent.mkdir(parents=True, exist_ok=True)
        if Path(source).is_dir():
            place.mkdir(exist_ok=True)
        else:
            place.touch()
        subprocess.run(["mount", "--rbind", source, place], check=True)


def of_sarus_suite() -> None:
    config = json.load(sys.stdin)
    words = [word.removeprefix("--").partition("=")[::2] for word in sys.argv[1:]]
    given = {name: [v for n, v in words if n == name] for name, _ in words}
    if unknown := set(given) - {"ldconfig", "lib", "dependency-lib", "env", "mount"}:
        sys.exit(f"unknown options: {unknown}")

    def mount(source: str, target: str, options: str = "rbind,ro,nosuid,nodev,private") -> None:
        listed = options.split(",")
        config["mounts"].append(
            {"source": source, "destination": target, "type": "bind", "options": listed}
        )

    for library in given.get("lib", []):
        for place in alike(given["ldconfig"][0], config["root"]["path"], library):
            mount(library, place)
    search = []
    for library in given.get("dependency-lib", []):
        name, folder = Path(library).name, tempfile.mkdtemp(prefix="pc-injection-")
        Path(folder, name).touch()  # runc makes no place for a mount in a folder that is read-only
        search.append(f"/run/pc-injection/{name}")
        mount(folder, search[-1])
        mount(library, f"{search[-1]}/{name}")
    for text in given.get("mount", []):
        mount(*text.split(":"))
    variables = dict(text.partition("=")[::2] for text in config["process"]["env"])
    variables |= dict(text.partition("=")[::2] for text in given.get("env", []))
    variables["LD_LIBRARY_PATH"] = ":".join([*search, variables.get("LD_LIBRARY_PATH", "")])
    config["process"]["env"] = [f"{name}={value}" for name, value in variables.items()]
    json.dump(config, sys.stdout)


of_sarus_suite() if Path(sys.argv[0]).name == "pc_injection_hook" else of_sarus()
