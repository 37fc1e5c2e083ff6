"""For engines that bind only folders, and create mount points only directly below /opt, not deeper.

The witness is in a host folder that also has empty folders as mount points for the other binds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PurePosixPath

from fairlead.swap.model import ROOM, WITNESS, Bind, Line
from fairlead.swap.remedies.model import Draft, Phase, Remedy


class FoldersOnly(Remedy):
    name = "folders-only"
    title = "shows one prepared folder to engines that cannot show single files"
    phase = Phase.SHOWING

    def applies(self, draft: Draft) -> bool:
        return not draft.inputs.engine.binds_files

    def finish(self, draft: Draft) -> Draft:
        room = str(room_folder(draft.inputs.cache, draft.inputs.witness))
        why = "this engine shows folders only: the witness is in one, with places for the others"
        line = Line("bind", f"{room} -> {ROOM} (read-only)", why)
        others = (bind for bind in draft.binds if bind.target != WITNESS)
        binds = (Bind(room, ROOM, read_only=True), *others)
        return replace(draft, binds=binds, lines=(*draft.lines, line))


REMEDY = FoldersOnly()


def room_folder(cache: Path, witness: str) -> Path:
    """The host folder bound to :data:`~fairlead.swap.model.ROOM` for an engine that binds only folders."""
    return cache / "room" / (PurePosixPath(witness).stem or "bare")
