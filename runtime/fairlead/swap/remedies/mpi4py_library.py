"""Names the host's MPI to mpi4py where its Python's prefix has an MPI of another family.

mpi4py opens ``libmpi.so``, ``libmpi.so.12`` and ``libmpi.so.40`` of its Python's prefix before anything that the search path
leads to, since its release 4.1, as conda and virtual environments with an MPI's wheel have them. Of the
host's family they are replaced; of another they cannot be.
"""

from __future__ import annotations

from fairlead.swap.model import MOUNT, Line
from fairlead.swap.remedies.model import Changes, Draft, Remedy

_OPENED = {"libmpi.so", "libmpi.so.12", "libmpi.so.40"}
_VARIABLE = "MPI4PY_LIBMPI"


class Mpi4pyLibrary(Remedy):
    name = "mpi4py-library"
    title = "names the host's MPI to mpi4py where its Python's prefix has one of another family"

    def applies(self, draft: Draft) -> bool:
        host = draft.inputs.swapped_in
        return bool(
            host
            and draft.own_family is not host.library.family
            and any(
                mpi.python_prefix
                and mpi.family is not host.library.family
                and _OPENED.intersection(mpi.names)
                for mpi in draft.inputs.facts.mpis
            )
        )

    def change(self, draft: Draft) -> Changes:
        host = draft.inputs.swapped_in
        assert host is not None
        if any(name == _VARIABLE for name, _ in draft.inputs.request.mpi4py):
            return Changes()  # the user's stays; the proof shows what it leads to
        path = f"{MOUNT}/lib/{host.library.soname}"
        why = "its Python's prefix has an MPI of another family, which mpi4py would open first"
        return Changes(
            env={_VARIABLE: path}, lines=(Line("env", f"{_VARIABLE}={path}", why, path),)
        )


REMEDY = Mpi4pyLibrary()
