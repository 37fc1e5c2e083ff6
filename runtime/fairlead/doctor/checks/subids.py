"""Has this user a range of ids to map into a user namespace? Building an image takes 65536."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fairlead.doctor.diagnosis import Check, Diagnosis, RootFix, Topic, ill, well
from fairlead.doctor.world import World

NEEDED = 65536
_FILES = ("/etc/subuid", "/etc/subgid")
# A file's last line may lack its end, to which a plain `tee -a` would be glued.
_APPEND = (
    'entry=$1; shift; for f; do [ -z "$(tail -c 1 "$f" 2>/dev/null)" ] || echo >>"$f"; '
    'echo "$entry" >>"$f"; done'
)


def examine(world: World) -> Iterator[Diagnosis]:
    texts = {path: world.read(path) or "" for path in _FILES}
    lacking = [path for path, text in texts.items() if not _has_range(text, world)]
    if not lacking:
        yield well(f"{world.user} can map {NEEDED} user and group ids", " and ".join(_FILES))
        return
    entry = f"{world.user}:{_first_free(texts.values())}:{NEEDED}"
    yield ill(
        "subids",
        user=world.user,
        needed=NEEDED,
        lacking=" and ".join(lacking),
        entry=entry,
        lacking_list=" ".join(lacking),
        fix=RootFix(
            f"adds {entry} to {' and '.join(lacking)}",
            ("sh", "-c", _APPEND, "sh", entry, *lacking),
            f"echo {entry} | sudo tee -a {' '.join(lacking)}",
        ),
    )


def _ranges(text: str) -> Iterator[tuple[str, int, int]]:
    """``(owner, first id, count)`` of each well-formed line."""
    for line in text.splitlines():
        parts = line.strip().split(":")
        if len(parts) == 3 and parts[1].isdecimal() and parts[2].isdecimal():
            yield parts[0], int(parts[1]), int(parts[2])


def _has_range(text: str, world: World) -> bool:
    owners = {world.user, str(world.uid)}
    return any(owner in owners and count >= NEEDED for owner, _, count in _ranges(text))


def _first_free(texts: Iterable[str]) -> int:
    """Behind every range given so far, and behind those that useradd gives first."""
    return max([200_000, *(start + count for text in texts for _, start, count in _ranges(text))])


CHECK = Check("subids", "id ranges for user namespaces", examine, Topic.MACHINE, order=30)
