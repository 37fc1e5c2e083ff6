"""Which kind of store a URL means."""

from __future__ import annotations

from functools import cache

from fairlead.base.errors import fail
from fairlead.base.registry import Registry
from fairlead.base.suggest import suggest
from fairlead.objects.model import Store, StoreKind
from fairlead.objects.url import Url, hidden, parse

REGISTRY: Registry[StoreKind] = Registry("fairlead.objects.stores", "STORE")


@cache
def kind_of(scheme: str) -> StoreKind | None:
    """What declares the scheme; else what knows it all the same."""
    kinds = tuple(REGISTRY)
    declared = (kind for kind in kinds if scheme in kind.schemes)
    return next(declared, None) or next((kind for kind in kinds if kind.knows(scheme)), None)


def open_store(url: Url | str) -> Store:
    """The store of a URL; nothing is asked of it yet.

    Raises:
        FairleadError: exit code 2; the URL is invalid, its scheme is unknown, a package is missing, or there are no
            credentials.
    """
    place = parse(url) if isinstance(url, str) else url
    kind = kind_of(place.scheme)
    if kind is None:
        known = [scheme for kind in REGISTRY for scheme in kind.schemes]
        near = suggest(place.scheme, known)
        url = hidden(str(place))
        raise fail("object-url-scheme", url=url, near=near, known=", ".join(known))
    return kind.opened(place)
