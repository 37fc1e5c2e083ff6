"""Runs in a sandbox: mmdebstrap, and so the maintainer scripts of all packages.

``debian.py`` starts it. The jail shows this machine's programs, the staged packages and a folder for the tree;
the tar stream comes out by stdout.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from fairlead.base.errors import fail
from fairlead_build.base.jail import Jail, host_view, spawn, tree_owner
from fairlead_build.base.progress_protocol import refuse


def main() -> None:
    """The request is the file that the first argument names."""
    if not tree_owner():
        refuse(fail("subuid"))
    request = Path(sys.argv[1])
    asked = json.loads(request.read_text("utf-8"))
    root, tree = request.parent / "root", request.parent / "tree"
    for folder in (root, tree):
        folder.mkdir()
    os.chown(tree, tree_owner(), tree_owner())
    staged = {f"/build/{name}": request.parent / name for name in ("repo", "stage", "tools")}
    jail = Jail(root, view={**host_view(), **staged}, shared={"/build/tree": tree})
    out, err = sys.stdout.fileno(), sys.stderr.fileno()  # stdout is the tar
    code = spawn(jail, asked["argv"], asked["env"], stdout=out, stderr=err).wait()
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
