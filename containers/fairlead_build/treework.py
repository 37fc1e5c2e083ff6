"""Runs in a ``chamber.py``: wheels and files are laid over the Debian part of a tree.

``tree.py`` starts it. Its stdout is what :func:`chamber.write_changes` writes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from fairlead_build.chamber import LAY, enter, execute, snapshot, write_changes
from fairlead_build.phases import tell
from fairlead_build.proc import clean_environment


def main() -> None:
    """The request is the file that the first argument names."""
    asked = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    tell(sys.stderr, "stage", "lay out the Debian part", 0, "")
    root = enter(asked)
    before = snapshot(root)
    env = clean_environment()
    # By the tree's own `cp`, in it: a link of the tree must not lead out of it.
    lay = "/.fairlead-files/."
    execute(root, ["cp", "-r", "--no-preserve=ownership,timestamps", lay, "/"], env)
    if asked["python"]:
        execute(root, ["python3", "-I", "/.fairlead-stage/install.py"], env)
    for overlay in asked["overlays"]:
        execute(root, [*LAY, overlay], env)
    execute(root, ["ldconfig"], env)
    write_changes(root, before, asked["epoch"], sys.stdout.buffer)


if __name__ == "__main__":
    main()
