"""A shared library with nothing in it but a DT_NEEDED: another name for a library whose place is not known.

A symlink needs the place of its target; a driver's library comes from the engine, at a place of the engine's choice. The
loader finds what a stub needs as it finds any library, or takes the one that the process has mapped already, and
``dlsym`` on the stub's handle searches it. Layout: System V gABI chapters 4 and 5.
"""

from __future__ import annotations

import struct

# By their names in :class:`~fairlead.elf.facts.Elf`: e_machine, e_flags.
MACHINES = {"x64": (62, 0), "AArch64": (183, 0), "64-bit PowerPC": (21, 2)}
_HEADER, _SEGMENT, _ENTRY = struct.Struct("<16sHHIQQQIHHHHHH"), struct.Struct("<IIQQQQQQ"), "<QQ"
_PT_LOAD, _PT_DYNAMIC, _PT_GNU_STACK = 1, 2, 0x6474E551
_READ_WRITE = 6  # the loader writes addresses into the dynamic section
_PAGE = 0x10000  # the largest of these machines'
_NEEDED, _HASH, _STRTAB, _SYMTAB, _STRSZ, _SYMENT, _SONAME, _RPATH = 1, 4, 5, 6, 10, 11, 14, 15


def stub(name: str, needed: str, machine: str, rpath: str = "") -> bytes:
    """The content of a library ``name`` that needs the library ``needed``.

    Args:
        rpath: its DT_RPATH: that of what opens it does not hold for what it needs.
    Raises:
        KeyError: the machine is not one of :data:`MACHINES`.
    """
    kind, flags = MACHINES[machine]
    texts = [text.encode() + b"\0" for text in (needed, name, *([rpath] if rpath else ()))]
    strings = b"\0" + b"".join(texts)
    symbols_at = _HEADER.size + 3 * _SEGMENT.size
    hash_at = symbols_at + 24  # one undefined symbol
    strings_at = hash_at + 16
    dynamic_at = (strings_at + len(strings) + 7) // 8 * 8
    entries = (
        (_NEEDED, 1), (_SONAME, 1 + len(texts[0])), (_HASH, hash_at), (_STRTAB, strings_at),
        (_STRSZ, len(strings)), (_SYMTAB, symbols_at), (_SYMENT, 24),
        *([(_RPATH, 1 + len(texts[0]) + len(texts[1]))] if rpath else ()), (0, 0),
    )  # fmt: skip
    dynamic = b"".join(struct.pack(_ENTRY, *entry) for entry in entries)
    size = dynamic_at + len(dynamic)
    identity = b"\x7fELF\2\1\1".ljust(16, b"\0")
    header = _HEADER.pack(
        identity, 3, kind, 1, 0, _HEADER.size, 0, flags, _HEADER.size, _SEGMENT.size, 3, 64, 0, 0
    )
    segments = (
        _SEGMENT.pack(_PT_LOAD, _READ_WRITE, 0, 0, 0, size, size, _PAGE),
        _SEGMENT.pack(_PT_DYNAMIC, _READ_WRITE, *(dynamic_at,) * 3, *(len(dynamic),) * 2, 8),
        _SEGMENT.pack(_PT_GNU_STACK, _READ_WRITE, 0, 0, 0, 0, 0, 16),
    )
    table = struct.pack("<IIII", 1, 1, 0, 0)
    before = header + b"".join(segments) + b"\0" * 24 + table + strings
    return before.ljust(dynamic_at, b"\0") + dynamic
