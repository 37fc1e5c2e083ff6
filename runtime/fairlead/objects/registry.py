"""Which kind of store a URL means."""

from __future__ import annotations

from functools import cache

from fairlead.base.registry import Registry
from fairlead.objects.model import Store, StoreKind
from fairlead.objects.url import Url, parse

REGISTRY: Registry[StoreKind] = Registry("fairlead.objects.stores", "STORE")


@cache
def _kind(scheme: str) -> StoreKind:
    return next(kind for kind in REGISTRY if scheme in kind.schemes)


def open_store(url: Url | str) -> Store:
    """The store of a URL; nothing is asked of it yet.

    Raises:
        FairleadError: exit code 2; the URL is invalid, a package is missing, or there are no credentials.
    """
    place = parse(url) if isinstance(url, str) else url
    return _kind(place.scheme).opened(place)
