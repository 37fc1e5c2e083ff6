"""Which edition of the MPI standard brought a function.

Programs that call nothing newer than an edition run on every library that reaches it. Functions of
MPI 2.2 and older count as 2.2: no library in use is older.
Source: the change logs of the MPI standards 3.0 to 5.0; held against the symbols that MPICH 3.4.3,
4.0.3, 4.2.3 and 5.0.2 export.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

OLDEST = "2.2"


def fortran_names(function: str) -> frozenset[str]:
    """What compilers make of the Fortran name of a function, and mpi_f08's procedure for it.

    >>> sorted(fortran_names("MPI_Init"))
    ['MPI_INIT', 'mpi_init', 'mpi_init_', 'mpi_init__', 'mpi_init_f08_']
    """
    name = function.lower()
    return frozenset({name, f"{name}_", f"{name}__", f"{name}_f08_", name.upper()})


# By which Fortran starts MPI, and asks for its rank.
FORTRAN_STARTS = fortran_names("MPI_Init") | fortran_names("MPI_Init_thread")
FORTRAN_RANKS = fortran_names("MPI_Comm_rank")
_COLLECTIVE = (
    "allgatherv?|allreduce|alltoall[vw]?|barrier|bcast|exscan|gatherv?|reduce|"
    "reduce_scatter(_block)?|scan|scatterv?|neighbor_allgatherv?|neighbor_alltoall[vw]?"
)
# Newest first: `mpi_bcast_init_c` is of 4.0 by its ending already.
_EDITIONS = {
    "5.0": r"abi_.*|\w+_(fromint|toint)",
    "4.1": r"buffer_i?flush|(comm|session)_((attach|detach)_buffer(_c)?|i?flush_buffer)|"
    r"get_hw_resource_info|remove_error_(class|code|string)|"
    r"request_get_status_(all|any|some)|status_[gs]et_(error|source|tag)|"
    r"type_get_value_index",
    "4.0": rf"\w+_c|({_COLLECTIVE})_init|comm_create_from_group|comm_idup_with_info|"
    r"group_from_session_pset|info_create_env|info_get_string|"
    r"intercomm_create_from_groups|isendrecv(_replace)?|parrived|pready(_list|_range)?|"
    r"p(recv|send)_init|session_\w+|t_(event|source)_\w+|t_category_get_(num_)?events",
    "3.1": r"aint_(add|diff)|file_i(read|write)_(all|at_all)|"
    r"t_(category|cvar|pvar)_get_index",
    "3.0": rf"i({_COLLECTIVE})|neighbor_\w+|i?m(probe|recv)|comm_(dup_with_info|idup|"
    r"create_group|split_type|[gs]et_info)|get_elements_x|get_library_version|"
    r"type_(create_hindexed_block|get_(true_)?extent_x|size_x)|status_set_elements_x|"
    r"win_(allocate(_shared)?|attach|create_dynamic|detach|flush(_local)?(_all)?|"
    r"[gs]et_info|(un)?lock_all|shared_query|sync)|r(put|get|accumulate|get_accumulate)|"
    r"fetch_and_op|compare_and_swap|get_accumulate|message_\w+|status_(f|c)2f08|"
    r"status_f082(c|f)|t_\w+",
}


def edition_of(function: str) -> str:
    """The edition that brought a function, by its C name or its Fortran symbol.

    >>> edition_of("PMPI_Ibcast"), edition_of("mpi_send_"), edition_of("MPI_Send_c")
    ('3.0', '2.2', '4.0')
    """
    name = function.lower().rstrip("_")
    name = name[1:] if name.startswith("pmpi_") else name
    brought = (e for e, pattern in _EDITIONS.items() if re.fullmatch(f"mpi_({pattern})", name))
    return next(brought, OLDEST)


def standard_floor(functions: Iterable[str]) -> str:
    """The oldest edition that has all of ``functions``; empty when there are none."""
    return max(map(edition_of, functions), default="")
