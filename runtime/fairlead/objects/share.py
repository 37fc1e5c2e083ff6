"""Access for others: links that work for a time, or a policy of the bucket for users and groups."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from fairlead.base import bounded_json
from fairlead.base.errors import fail
from fairlead.base.text import plain
from fairlead.objects.dataset import Prefix
from fairlead.objects.model import MARK
from fairlead.objects.stores.s3 import S3

LONGEST_S = 7 * 86400  # what signatures of S3 allow
_SID = "Fairlead"  # begins the names of its statements


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
    """Lets users and groups list and read a prefix, by statements of the bucket's policy. Other statements stay, and so
    do those whom an earlier call has let in.

    Raises:
        FairleadError: exit code 2; the store has no policies, or does not let this user write one.
    """
    store = _s3(place)
    policy = _policy(store)
    sid = _sid(place)
    statements, own = _parted(policy, place)
    before = (str(principal) for each in own for principal in _principals(each))
    principals = tuple(dict.fromkeys((*before, *principals)))
    scopes, who = _scopes(place), {"AWS": list(principals)}
    statements += [
        {"Sid": f"{sid}{kind}", "Effect": "Allow", "Principal": who, **scope}
        for kind, scope in scopes.items()
    ]
    store.set_policy(json.dumps({**policy, "Statement": statements}))


def forbid(place: Prefix) -> bool:
    """Takes back what :func:`allow` has given; whether there was something."""
    store = _s3(place)
    policy = _policy(store)
    rest, own = _parted(policy, place)
    if not own:
        return False
    if rest:
        store.set_policy(json.dumps({**policy, "Statement": rest}))
    else:
        store.remove_policy()
    return True


def _policy(store: S3) -> dict[str, Any]:
    text = store.policy()
    try:
        policy = bounded_json.loads(text) if text else {"Version": "2012-10-17", "Statement": []}
        policy["Statement"] = statements = _listed(policy["Statement"])
        if not all(isinstance(each, dict) for each in statements):
            raise ValueError("a statement of it is not an object")
    except (ValueError, LookupError, TypeError) as exc:
        raise fail("object-policy-odd", url=store.url, reason=plain(str(exc))[:80]) from None
    return dict(policy)


def _scopes(place: Prefix) -> dict[str, dict[str, Any]]:
    """What statements of a prefix are about."""
    bucket, prefix = place.store.url.bucket, place.store.url.key.strip("/")
    below = f"{prefix}/*" if prefix else "*"
    return {
        "Read": {"Action": ["s3:GetObject"], "Resource": [f"arn:aws:s3:::{bucket}/{below}"]},
        "List": {
            "Action": ["s3:ListBucket"], "Resource": [f"arn:aws:s3:::{bucket}"],
            "Condition": {"StringLike": {"s3:prefix": [below]}},
        },
    }  # fmt: skip


def _parted(policy: dict[str, Any], place: Prefix) -> tuple[list[Any], list[Any]]:
    """The statements of a policy that are not of this prefix, and those that are."""
    scopes = [_plain(scope) for scope in _scopes(place).values()]
    parts: tuple[list[Any], list[Any]] = ([], [])
    for each in policy["Statement"]:
        ours = str(each.get("Sid", "")).startswith(_SID)
        about = {k: v for k, v in each.items() if k in ("Action", "Resource", "Condition")}
        parts[ours and _plain(about) in scopes].append(each)
    return parts


def _principals(statement: dict[str, Any]) -> list[Any]:
    """Whom a statement is about; a store may write everybody as ``*`` alone."""
    whom = statement.get("Principal", ())
    return _listed(whom.get("AWS", ()) if isinstance(whom, dict) else whom)


def _plain(value: Any) -> Any:
    """A part of a policy as stores may give it back: one value instead of a list of one."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _listed(value: Any) -> list[Any]:
    """What a policy may have as one value or as several."""
    return list(value) if isinstance(value, list | tuple) else [value]


def _sid(place: Prefix) -> str:
    """A name for the statements of one prefix; letters and digits only, which two prefixes could share."""
    key = place.store.url.key.strip("/")
    letters = "".join(c for c in key.title() if c.isascii() and c.isalnum())
    return f"{_SID}{letters[:64]}{hashlib.sha256(key.encode()).hexdigest()[:12]}"


def _s3(place: Prefix) -> S3:
    if not isinstance(place.store, S3):
        raise fail("object-unsupported", place=place.title, reason="policies need S3")
    return place.store
