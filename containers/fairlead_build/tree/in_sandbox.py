"""Runs in a sandbox: wheels and files are laid over the Debian part of a tree.

``tree.py`` starts it. Its stdout is what :func:`sandbox.write_changes` writes; what is in the tree goes to the file
``found`` of the request, and to ``found_whole`` what is in it with the folder ``over`` laid over it.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fairlead.base.serde import to_json
from fairlead.elf.facts import Elf
from fairlead_build.base.jail import Jail, execute, mount_union, within
from fairlead_build.base.proc import clean_environment
from fairlead_build.base.progress_protocol import report
from fairlead_build.tree.record import Contents
from fairlead_build.tree.sandbox import LAY, enter, leave, snapshot, write_changes


def main() -> None:
    """The request is the file that the first argument names."""
    asked = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    report("stage", "lay out the Debian part", 0, "")
    jail = enter(asked)
    before = snapshot(jail.root)
    env = clean_environment()
    # By the tree's own `cp`, in it: a link of the tree must not lead out of it.
    lay = "/.fairlead-files/."
    execute(jail, ["cp", "-r", "--no-preserve=ownership,timestamps", lay, "/"], env)
    if asked["python"]:
        execute(jail, ["python3", "-I", "/.fairlead-stage/install.py"], env)
    for overlay in asked["overlays"]:
        execute(jail, [*LAY, overlay], env)
    execute(jail, ["ldconfig"], env)
    leave(jail)
    # Two things to do with a finished tree, and a core for each.
    fork = multiprocessing.get_context("fork")
    scanner = fork.Process(target=_scan, args=(jail.root, asked))
    scanner.start()
    tree, out = Jail(jail.root), sys.stdout.buffer
    within(tree, lambda: write_changes(Path("/"), before, asked["epoch"], out))
    scanner.join()
    if scanner.exitcode:
        sys.exit("the tree cannot be looked into")


def _scan(root: Path, asked: Mapping[str, Any]) -> None:
    """Writes what is in the tree, and in the image that has fairlead over it where the kernel can show that."""
    known: dict[str, Elf | str] = {}
    _write(Contents.of(root, known), asked["found"])
    if asked["over"]:
        over, whole = Path(asked["over"]), Path(asked["found"]).with_name("whole")
        whole.mkdir()
        with suppress(OSError):
            mount_union(over, root, whole)
            for path in over.rglob("*"):
                known.pop(f"/{path.relative_to(over)}", None)
            _write(Contents.of(whole, known), asked["found_whole"])


def _write(contents: Contents, target: str) -> None:
    Path(target).write_text(json.dumps(to_json(contents)), "utf-8")


if __name__ == "__main__":
    main()
