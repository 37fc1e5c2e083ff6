"""The tree of an image as a folder: to look around, and to try a change."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from fairlead.base.errors import FairleadError
from fairlead.base.progress import Progress
from fairlead.image.tree_digest import scan_folder, tree_sha256
from fairlead_build.base.proc import no_space, run
from fairlead_build.formats.images import ImageEntry
from fairlead_build.formats.model import Format
from fairlead_build.squashfs.tree_stream import bare_squashfs
from fairlead_build.tools import tool_tree


def unpack(image: Path, folder: Path, progress: Progress) -> None:
    """Unpacks a SIF or squashfs: modes and times as in the image, owned by the calling user.

    Raises:
        FairleadError: there is no room, or the image is damaged.
    """
    with progress.stage("unpack the sandbox"), bare_squashfs(image) as squashfs:
        folder.mkdir()
        argv = [
            *tool_tree.command("rdsquashfs"), "--unpack-path", "/", "--unpack-root", folder,
            "--quiet", "--chmod", "--set-times", squashfs,
        ]  # fmt: skip
        doing = "unpack the image"
        try:
            run(argv, doing=doing, remedy="fairlead build RECIPE --format sandbox")
        except FairleadError as exc:
            if exc.findings[0].check == "no-space":
                # `folder` lies in a workspace of its own, which is gone when this is read.
                raise no_space(doing, folder.parents[1]) from None
            raise
        folder.chmod(0o755)


def _holds(target: Path, kept: Path, entry: ImageEntry, progress: Progress) -> bool:
    if not target.is_dir() or target.is_symlink():
        return False
    with progress.stage(f"compare {target.name}", unit="B") as stage, suppress(OSError):
        return tree_sha256(scan_folder(target, stage.advance)) == entry.tree_sha256
    return False


FORMAT = Format(
    "sandbox", ".sandbox", "the tree as a folder",
    lambda entry, target, progress: unpack(Path(entry.path), target, progress),
    folder=True, holds=_holds, digest=None,
)  # fmt: skip
