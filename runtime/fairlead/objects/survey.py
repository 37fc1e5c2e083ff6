"""What is at a URL, judged before anything is copied: once for all nodes, which then get the very versions listed here."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from fairlead.base import data_list
from fairlead.base.errors import fail
from fairlead.objects import workers
from fairlead.objects.failures import passing
from fairlead.objects.model import MARK, SHA256, Listing, Object, Store
from fairlead.objects.names import folders_and_files
from fairlead.objects.url import hidden

_MOST_LIST = 64 << 20  # bytes
_SHOWN = 5


def survey(store: Store) -> Listing:
    """Lists what is at a store's URL, with the digests that its ``data.json`` has.

    Raises:
        FairleadError: there is nothing; it cannot be reached or read; it is incomplete: results are still being written
            there, or files of its list are missing; names are no paths.
    """
    objects, single = workers.tried_again(store.list)
    place = hidden(str(store.url))
    if not objects:
        raise fail("object-missing", place=place, reason="nothing is there")
    by_name = {each.name: each for each in objects}
    if MARK in by_name:
        raise fail("object-incomplete", place=place, mark=MARK)
    listing = Listing(place, tuple(sorted(objects, key=lambda each: each.name)), single)
    if not single and (known := by_name.get(data_list.NAME)):
        listing = replace(_with_digests(store, listing, known), listed=True)
    folders_and_files(listing)
    return listing


def _with_digests(store: Store, listing: Listing, known: Object) -> Listing:
    """The listing with what ``data.json`` says of each file.

    A folder of a program's own may have another ``data.json``, which then says nothing.
    """
    text = small(store, known)
    if b'"fairlead.data.files"' not in text[:200]:
        return listing
    files = data_list.parsed(text, str(store.url.below(data_list.NAME)))
    sizes = {each.name: each.size for each in listing.objects}
    wrong = [name for name, file in files.items() if sizes.get(name) != file.bytes]
    if wrong:
        few = ", ".join(sorted(wrong)[:_SHOWN])
        raise fail("object-set", place=listing.url, count=len(wrong), few=few)
    digests = {name: file.sha256 for name, file in files.items()}
    objects = (replace(each, sha256=digests.get(each.name, "")) for each in listing.objects)
    return replace(listing, objects=tuple(objects))


def small(store: Store, each: Object) -> bytes:
    """The content of a small object.

    Raises:
        FairleadError: it cannot be read, or is larger than any list of files.
    """
    if each.size > _MOST_LIST:
        place = store.url.below(each.name)
        raise fail("object-failed", place=place, reason="it is too large")

    def once() -> bytes:
        with store.read(each, 0, each.size) as body:
            content = b"".join(body.chunks)
            expected = body.metadata.get(SHA256)
        if expected and expected != hashlib.sha256(content).hexdigest():
            raise passing("other bytes came than were written", store.url, each.name)
        return content

    return workers.tried_again(once)
