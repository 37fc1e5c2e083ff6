"""For host libraries that need a newer glibc than the image has: binds all of the host's over the image's files."""

from __future__ import annotations

from pathlib import PurePosixPath

from fairlead.swap.glibc import GLIBC_FOLDER, GlibcWay, host_glibc
from fairlead.swap.model import Bind, Line, StagedFile
from fairlead.swap.remedies.model import Changes, Draft, Parts, Remedy


class GlibcBind(Remedy):
    name = "glibc-bind"
    title = "shows the host's glibc over the image's, piece by piece"
    way = GlibcWay.BIND

    def applies(self, draft: Draft) -> bool:
        return draft.glibc is not None and draft.glibc.way is self.way

    def stage(self, draft: Draft) -> Parts:
        """The host's C library, in a separate subfolder of the staged folder."""
        glibc, host = draft.glibc, draft.inputs.swapped_in
        if glibc is None or host is None or not glibc.pieces:
            return Parts()
        files = tuple(StagedFile(e.path, f"{GLIBC_FOLDER}/{e.soname}") for e in glibc.pieces)
        names = ", ".join(elf.soname for elf in glibc.pieces)
        why = "the host's C library, whole, in a folder that no search path names"
        line = Line("stage", f"{GLIBC_FOLDER}/: {len(files)} files", why, names)
        return Parts(files, (line,), host_glibc(host))

    def change(self, draft: Draft) -> Changes:
        glibc, host, facts = draft.glibc, draft.inputs.swapped_in, draft.inputs.facts
        assert glibc is not None and host is not None
        why = (
            f"the host's libraries need GLIBC_{glibc.need}, the image has {facts.glibc}: the host's glibc "
            f"{host_glibc(host)} takes its place, whole"
        )
        source = draft.folder / GLIBC_FOLDER
        binds = tuple(
            Bind(str(source / piece.soname), facts.glibc_files[piece.soname], read_only=True)
            for piece in glibc.pieces
        )
        place = PurePosixPath(facts.glibc_files["libc.so.6"]).parent
        what = f"{source}/* -> {place}/* ({len(glibc.pieces)} files, read-only)"
        return Changes(binds, lines=(Line("bind", what, why, glibc.by),))


REMEDY = GlibcBind()
