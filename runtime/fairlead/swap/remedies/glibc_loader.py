"""Like :mod:`glibc_bind`, for engines that bind only folders: the host's loader starts the program.

Programs that it starts in turn run on the image's glibc."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from fairlead.elf.facts import ImageFacts
from fairlead.swap.glibc import GLIBC_FOLDER, Glibc, GlibcWay, host_glibc
from fairlead.swap.layout import folders_behind, search_folders
from fairlead.swap.model import MOUNT, Line
from fairlead.swap.remedies.glibc_bind import GlibcBind
from fairlead.swap.remedies.model import Changes, Draft


class GlibcLoader(GlibcBind):
    name = "glibc-loader"
    title = (
        "starts the program by the loader of the host's glibc, for engines that show folders only"
    )

    way = GlibcWay.LOADER

    def change(self, draft: Draft) -> Changes:
        glibc, host, request = draft.glibc, draft.inputs.swapped_in, draft.inputs.request
        assert glibc is not None and host is not None and draft.staging is not None
        behind = folders_behind(request)
        folders = search_folders(draft.staging, host, apart=bool(draft.bound or behind))
        why = (
            f"the host's libraries need GLIBC_{glibc.need}, and this engine cannot show single files: the "
            f"loader of the host's glibc {host_glibc(host)} starts the program; what the program starts "
            "runs on the image's"
        )
        line = Line("start", f"{MOUNT}/{GLIBC_FOLDER}, by its own loader", why, glibc.by)
        words = loader_words(glibc, (*folders, *behind), draft.inputs.facts)
        return Changes(lines=(line,), wrapper=words)


REMEDY = GlibcLoader()


def loader_words(glibc: Glibc, folders: Sequence[str], facts: ImageFacts) -> tuple[str, ...]:
    """The words before a command that make the host's loader start it.

    Args:
        folders: library folders of the host's MPI in the container, in search order.
    """
    loader = next(e.soname for e in glibc.pieces if e.soname.startswith("ld-linux"))
    own = str(PurePosixPath(facts.glibc_files["libc.so.6"]).parent)
    path = ":".join([*folders, f"{MOUNT}/{GLIBC_FOLDER}", own])
    start = (
        'p=$(command -v -- "$0") || { echo "fairlead: $0: not found in the image" >&2; exit 127; }; '
        'case $(head -c2 "$p") in "#!") echo "fairlead: $p is a script: start it by its interpreter, '
        'which the loader of the host can start" >&2; exit 126;; esac; '
        f'exec {MOUNT}/{GLIBC_FOLDER}/{loader} --library-path "{path}" --argv0 "$0" "$p" "$@"'
    )
    return ("/bin/sh", "-c", start)
