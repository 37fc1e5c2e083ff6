"""Access for others: links that work for a time, or a policy of the bucket for users and groups."""

from __future__ import annotations

import json
from typing import Any

from fairlead.base import bounded_json
from fairlead.base.errors import fail
from fairlead.objects.dataset import Prefix
from fairlead.objects.model import MARK
from fairlead.objects.stores.s3 import S3

LONGEST_S = 7 * 86400  # what signatures of S3 allow


def links(place: Prefix, seconds: int) -> dict[str, str]:
    """A link to each file of a place, by name; anyone who has it can read the file until it expires.

    Raises:
        FairleadError: exit code 2; nothing is there, or the store has no links.
    """
    objects = place.objects()
    if MARK in objects:
        raise fail("object-incomplete", place=place.title, mark=MARK)
    if not objects:
        raise fail("data-place", place=place.title)
    return {name: place.store.link(each.name, seconds) for name, each in sorted(objects.items())}


def allow(place: Prefix, principals: tuple[str, ...]) -> None:
    """Lets users and groups list and read a prefix, by a statement of the bucket's policy; others' statements stay.

    Raises:
        FairleadError: exit code 2; the store has no policies, or does not let this user write one.
    """
    store = _s3(place)
    policy = _policy(store)
    sid = _sid(place)
    statements = [
        each for each in policy["Statement"] if not str(each.get("Sid", "")).startswith(sid)
    ]
    bucket, prefix = store.url.bucket, store.url.key.strip("/")
    who = {"AWS": list(principals)}
    statements += [
        {
            "Sid": f"{sid}Read", "Effect": "Allow", "Principal": who, "Action": ["s3:GetObject"],
            "Resource": [f"arn:aws:s3:::{bucket}/{prefix}/*" if prefix else f"arn:aws:s3:::{bucket}/*"],
        },
        {
            "Sid": f"{sid}List", "Effect": "Allow", "Principal": who, "Action": ["s3:ListBucket"],
            "Resource": [f"arn:aws:s3:::{bucket}"],
            "Condition": {"StringLike": {"s3:prefix": [f"{prefix}/*" if prefix else "*"]}},
        },
    ]  # fmt: skip
    store.set_policy(json.dumps({**policy, "Statement": statements}))


def forbid(place: Prefix) -> bool:
    """Takes back what :func:`allow` has given; whether there was something."""
    store = _s3(place)
    policy = _policy(store)
    rest = [e for e in policy["Statement"] if not str(e.get("Sid", "")).startswith(_sid(place))]
    if len(rest) == len(policy["Statement"]):
        return False
    if rest:
        store.set_policy(json.dumps({**policy, "Statement": rest}))
    else:
        store.remove_policy()
    return True


def _policy(store: S3) -> dict[str, Any]:
    text = store.policy()
    return bounded_json.loads(text) if text else {"Version": "2012-10-17", "Statement": []}


def _sid(place: Prefix) -> str:
    letters = "".join(c for c in place.store.url.key.title() if c.isalnum())
    return f"Fairlead{letters}"


def _s3(place: Prefix) -> S3:
    if not isinstance(place.store, S3):
        raise fail("object-unsupported", place=place.title, said="policies need S3")
    return place.store
