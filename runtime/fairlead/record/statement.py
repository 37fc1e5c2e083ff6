"""What is signed of a record: an in-toto statement with SLSA's provenance, in a DSSE envelope and in OpenSSH's format.

The statement holds the digests of all other files of the record, so that it stands for them. Sources: in-toto
attestation framework, Statement v1; SLSA provenance v1; DSSE v1, protocol; OpenSSH, PROTOCOL.sshsig.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fairlead.image.keys import PrivateKey, PublicKey
from fairlead.record.model import Data, RunRecord

STATEMENT, ENVELOPE, SSH_SIGNATURE = "statement.json", "statement.dsse.json", "statement.json.sig"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
NAMESPACE = "fairlead-run-record"  # of `ssh-keygen -Y`
_TYPE, _PREDICATE = "https://in-toto.io/Statement/v1", "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:fairlead:run:1"
_BEFORE_POINT = b"\0\0\0\x0bssh-ed25519\0\0\0\x20"


def statement(record: RunRecord, files: Mapping[str, bytes]) -> bytes:
    """The statement of a record.

    Args:
        files: the others of its folder, by name.
    """
    before, outcome = record.before, record.outcome
    subjects = [
        {"name": name, "digest": {"sha256": hashlib.sha256(content).hexdigest()}}
        for name, content in sorted(files.items())
    ]
    subjects += [_descriptor(data) for data in record.results if data.sha256]
    document = {
        "_type": _TYPE,
        "subject": subjects,
        "predicateType": _PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "options": before.parameters.options,
                    "image": before.parameters.image,
                    "command": before.parameters.command,
                },
                "internalParameters": {
                    "site": before.host.site,
                    "engine": before.host.engine,
                    "launcher": before.host.launcher,
                    "mpi": before.mpi.title,
                },
                "resolvedDependencies": list(_dependencies(record)),
            },
            "runDetails": {
                "builder": {"id": BUILD_TYPE, "version": {"fairlead": before.fairlead}},
                "metadata": {
                    "invocationId": record.id,
                    "startedOn": outcome.began,
                    "finishedOn": outcome.ended,
                },
            },
        },
    }
    return text_of(document)


def text_of(document: Mapping[str, Any]) -> bytes:
    """A document as text; what of a file's name is not UTF-8 becomes ``?``."""
    return json.dumps(document, indent=1, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def _descriptor(data: Data) -> dict[str, Any]:
    weights = data.kind == "weights"
    uri = f"urn:fairlead:{data.name}" if weights else Path(data.path).as_uri()
    entry: dict[str, Any] = {"name": data.name, "uri": uri}
    if data.kind == "folder":  # no digest of the standard is one over a folder
        return {**entry, "digest": {"fairleadTree1": data.sha256}}
    return {**entry, "digest": {"sha256": data.sha256}}


def _dependencies(record: RunRecord) -> Iterator[dict[str, Any]]:
    before = record.before
    image, code = before.image, before.code
    digest = {"sha256": image.sha256} if image.sha256 else {"fairleadTree1": image.tree_sha256}
    yield {"name": "image", "digest": digest, "annotations": {"name": image.name}}
    for name, sha256 in (("lock", image.lock_sha256), ("sbom", image.sbom_sha256)):
        if sha256:
            yield {"name": name, "digest": {"sha256": sha256}}
    if code and code.commit:
        extra = {"annotations": {"diffSha256": code.diff_sha256}} if code.diff_sha256 else {}
        uri = {"uri": f"git+{code.remote}"} if re.match(r"https?://|ssh://", code.remote) else {}
        yield {"name": "code", **uri, "digest": {"gitCommit": code.commit}, **extra}
    for data in (*([before.script] if before.script else []), *before.inputs):
        yield _descriptor(data)
    for library in record.ranks.libraries:
        if library.sha256:
            yield {"name": library.path, "digest": {"sha256": library.sha256}}


def envelope(payload: bytes, key: PrivateKey) -> bytes:
    """The statement in a DSSE envelope."""
    signature = key.sign(_pre_authentication(payload))
    document = {
        "payloadType": PAYLOAD_TYPE,
        "payload": base64.b64encode(payload).decode(),
        "signatures": [{"keyid": key.public.id, "sig": base64.b64encode(signature).decode()}],
    }
    return json.dumps(document).encode() + b"\n"


def ssh_signature(payload: bytes, key: PrivateKey) -> bytes:
    """The statement's signature as ``ssh-keygen -Y sign -n fairlead-run-record`` makes it."""
    head = [NAMESPACE.encode(), b"", b"sha512"]
    signed = b"SSHSIG" + _strings([*head, hashlib.sha512(payload).digest()])
    signature = _strings([b"ssh-ed25519", key.sign(signed)])
    blob = (
        b"SSHSIG" + (1).to_bytes(4) + _strings([_BEFORE_POINT + key.public.raw, *head, signature])
    )
    text = base64.b64encode(blob).decode()
    lines = [text[at : at + 70] for at in range(0, len(text), 70)]
    return "\n".join(
        ["-----BEGIN SSH SIGNATURE-----", *lines, "-----END SSH SIGNATURE-----", ""]
    ).encode()


def _strings(parts: Iterable[bytes]) -> bytes:
    return b"".join(len(part).to_bytes(4) + part for part in parts)


def _pre_authentication(payload: bytes) -> bytes:
    kind = PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def signer_of(document: Any, payload: bytes) -> tuple[str, bytes]:
    """Identifier of the key, and the signature, of an envelope around ``payload``.

    Raises:
        ValueError: it is not as :func:`envelope` writes it, or around something else.
    """
    if not isinstance(document, dict) or document.get("payloadType") != PAYLOAD_TYPE:
        raise ValueError("it is not an in-toto envelope")
    if base64.b64decode(str(document.get("payload")), validate=True) != payload:
        raise ValueError(f"its payload is not {STATEMENT}")
    signatures = document.get("signatures")
    if not isinstance(signatures, list) or len(signatures) != 1:
        raise ValueError("it does not hold one signature")
    return str(signatures[0]["keyid"]), base64.b64decode(str(signatures[0]["sig"]), validate=True)


def verifies(payload: bytes, signature: bytes, key: PublicKey) -> bool:
    """Whether a signature of an envelope is one of ``key``."""
    return key.verifies(signature, _pre_authentication(payload))


def subjects(payload: Any) -> dict[str, str]:
    """sha256 of the files of a record, by name, as its statement has them.

    Raises:
        ValueError, LookupError, TypeError: it is not a statement.
    """
    if payload["_type"] != _TYPE or payload["predicateType"] != _PREDICATE:
        raise ValueError("it is not a statement of a run")
    return {
        str(s["name"]): str(s["digest"]["sha256"]) for s in payload["subject"] if "uri" not in s
    }
