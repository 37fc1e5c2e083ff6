"""Names of objects as paths. A store's names are any text; those that no folder can hold are refused, all at once."""

from __future__ import annotations

import os
from collections.abc import Sequence

from fairlead.base.errors import fail
from fairlead.objects.model import Listing, Object

_LONGEST = 255  # bytes of one part of a path, on every common file system
_LONGEST_PATH = 4000
_SHOWN = 5


def folders_and_files(listing: Listing) -> tuple[tuple[str, ...], tuple[Object, ...]]:
    """The folders to make, a folder before its content, and the objects that become files.

    An object whose name ends in a slash and that is empty stands for a folder, as consoles of stores write them.

    Raises:
        FairleadError: exit code 121; a name has parts that paths cannot have, or is both a file and a folder.
    """
    markers = {each.name for each in listing.objects if each.name.endswith("/") and not each.size}
    files = tuple(each for each in listing.objects if each.name not in markers)
    names = [*(name.rstrip("/") for name in markers), *(each.name for each in files)]
    wrong = [] if listing.single else [(name, why) for name in names if (why := _why_not(name))]
    folders = {name.rstrip("/") for name in markers}
    for name in names:
        parts = name.split("/")[:-1]
        folders |= {"/".join(parts[: n + 1]) for n in range(len(parts))}
    taken = {each.name for each in files}
    wrong += [(name, "another object's name goes on below it") for name in sorted(taken & folders)]
    if wrong:
        few = "; ".join(f"{name[:80]!r}: {why}" for name, why in wrong[:_SHOWN])
        more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise fail("object-names", place=listing.url, count=len(wrong), few=few, more=more)
    return tuple(sorted(folders)), files


def _why_not(name: str) -> str:
    """Why a name is not a path below a folder; empty if it is one."""
    parts = name.split("/")
    if "" in parts:
        return "a slash at its start or end, or two in a row"
    if {".", ".."} & set(parts):
        return "a part that is . or .."
    if "\0" in name:
        return "a zero byte"
    if max(len(os.fsencode(part)) for part in parts) > _LONGEST:
        return f"a part longer than {_LONGEST} bytes"
    return "longer than a path" if len(os.fsencode(name)) > _LONGEST_PATH else ""


def check_storable(place: str, paths: Sequence[str]) -> None:
    """Tests that paths can be names of objects.

    Raises:
        FairleadError: exit code 121; some are not UTF-8, or too long.
    """
    wrong = [path for path in paths if not _is_utf8(path)]
    if wrong:
        few = "; ".join(f"{path[:80]!r}: not UTF-8, or too long" for path in wrong[:_SHOWN])
        raise fail("object-names", place=place, count=len(wrong), few=few, more="")


def _is_utf8(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return len(path.encode()) <= 1024  # the longest key of S3
