"""Has one of the builder's supervisors run an attack, as the account that starts this; tests/system/test_jail.py."""

import io
import json
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fairlead.base.errors import FairleadError
from fairlead.base.progress import Silent
from fairlead_build.base.jail import supervised
from fairlead_build.base.progress_protocol import Phases
from fairlead_build.cache.store import workspace
from fairlead_build.tree.sandbox import sandbox
from fairlead_build.tree.wheel_compile import compile_wheel


def main(where: str, asked: dict[str, Any]) -> dict[str, Any]:
    with workspace(Path(asked["work"]), "attack-") as scratch:
        for name in ("stage", "given", "files", "repo", "tools", "results"):
            (scratch / name).mkdir()
        tree = {"untar": ["cat", asked["tar"]], "epoch": 0, "python": False}
        given = {f"/.fairlead-{name}": str(scratch / name) for name in ("stage", "given", "files")}
        script = "".join(f"export {k}={v!r}\n" for k, v in asked["env"].items()) + asked["attack"]
        match where:
            case "source":
                (scratch / "given/0/tree").mkdir(parents=True)
                source = {"name": "evil", "version": "1", "archive": "", "patches": [], "done": ""}
                env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
                sources = [{**source, "run": f"set +eu\n{script}", "env": env}]
                more = {"sources": sources, "debs": [], "results": str(scratch / "results")}
                started = sandbox(
                    "fairlead_build.tree.source_in_sandbox",
                    {**tree, "given": given, **more},
                    scratch,
                )
            case "tree":
                program = scratch / "files/usr/sbin/ldconfig"
                program.parent.mkdir(parents=True)
                program.write_text(f"#!/bin/sh\nexport REPLACE=1\n{script}")
                program.chmod(0o755)
                # What fairlead lays over the tree meets what the attack has put there.
                over = scratch / "over/usr/sbin"
                over.mkdir(parents=True)
                (over / "fairlead").write_text("#!/bin/sh\n")
                found = {"found": "found.json", "found_whole": "found-whole.json", "over": "over"}
                more = {
                    "overlays": [],
                    **{name: str(scratch / file) for name, file in found.items()},
                }
                started = sandbox(
                    "fairlead_build.tree.in_sandbox", {**tree, "given": given, **more}, scratch
                )
            case "packages":
                env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
                request = {"argv": ["sh", "-c", f"exec 1>&2\n{script}"], "env": env}
                (scratch / "request.json").write_text(json.dumps(request))
                started = supervised(
                    "fairlead_build.tree.debian_in_sandbox", scratch / "request.json"
                )
            case "compile":
                return compiled(Path(asked["squashfs"]), scratch)
        with started as process:
            out, err = process.communicate()
        overlay = scratch / "results/0/overlay.tar"
        if process.returncode:
            phases = Phases(Silent(), scratch)
            for line in err.decode().splitlines():
                phases.feed(line)
            raise phases.failed([where], process.returncode, "attack", "none")
        made = overlay.read_bytes() if where == "source" else out
        return {"said": err.decode("utf-8", "replace"), "made": made.hex()}


def compiled(squashfs: Path, scratch: Path) -> dict[str, Any]:
    """The tree's Python is the attack, and says what it found in place of a wheel."""
    buffer = io.BytesIO()
    zipfile.ZipFile(buffer, "w").close()
    python: Any = SimpleNamespace(prefix="/opt/evil", site="/opt/evil/lib")
    made = compile_wheel(buffer.getvalue(), python, squashfs, scratch)
    return {"said": made["said"].decode()}


if __name__ == "__main__":
    try:
        print(json.dumps(main(sys.argv[1], json.loads(sys.argv[2]))))
    except FairleadError as exc:
        print(json.dumps({"finding": exc.findings[0].to_json()}))
