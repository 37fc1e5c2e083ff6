"""The bare squashfs, for engines that mount one themselves."""

from __future__ import annotations

from pathlib import Path

from fairlead.base.progress import Progress
from fairlead.image.sif import copy_object, read_sif
from fairlead_build.formats.images import ImageEntry
from fairlead_build.formats.model import Format


def write(entry: ImageEntry, target: Path, progress: Progress) -> None:
    """Copies the squashfs out of the SIF.

    Raises:
        FairleadError: the SIF is damaged.
        OSError: as writing does.
    """
    image = Path(entry.path)
    partition = read_sif(image).squashfs
    with progress.stage("take the squashfs out of the SIF") as stage:
        with target.open("wb") as out:
            copy_object(image, partition, out)
        stage.result(f"{partition.size / 1e6:.0f} MB")


FORMAT = Format("squashfs", ".squashfs", "the bare squashfs", write, rank=3)
