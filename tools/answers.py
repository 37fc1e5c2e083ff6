"""The JSON Schema of what ``--json`` prints: the answers of verbs, by their ``schema``.

``python -m tools.answers`` writes it to ``docs/reference/answers.schema.json``; a test compares. An answer is made of
:data:`ANSWERS`, where classes stand for what serde writes of them.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.json_schemas import shape_of

from fairlead.base.data_list import ListedFile
from fairlead.base.errors import Finding
from fairlead.base.json_schema import DRAFT, schema_text
from fairlead.base.paths import atomic_write, checkout
from fairlead.bridge.arrow import Form
from fairlead.bridge.layout import BlockCyclic
from fairlead.bridge.timings import Operation
from fairlead.cli.screen import SCHEMA_VERSION
from fairlead.detect.drift import Compared
from fairlead.detect.model import SiteFacts
from fairlead.engines.model import Engine
from fairlead.image.open import Image
from fairlead.image.signature import Statement
from fairlead.image.stored import Stored
from fairlead.launch.unpack import Unpacked
from fairlead.launchers.model import Launcher
from fairlead.ml.train.result import TrainResult
from fairlead.objects.cache import Kept
from fairlead.objects.dataset import Described
from fairlead.objects.sync import Plan as SyncPlan
from fairlead.perf.bench import CollectivesBench
from fairlead.perf.draw.compose import Report
from fairlead.perf.draw.run_page import Verdict
from fairlead.perf.judge.compare import Comparison
from fairlead.perf.projection.fabrics import Network
from fairlead.perf.projection.step_model import Step
from fairlead.perf.records.validation import Validation
from fairlead.proof.nccl import NcclProof
from fairlead.proof.verdict import Proof, RankProof
from fairlead.record.compare import Difference as RunDifference
from fairlead.rendezvous.worlds import World
from fairlead.session.gradients import Option
from fairlead.site import Site
from fairlead.site.nccl import Variable
from fairlead.swap.model import Bind, Line, Staging
from fairlead.transfer.model import Moved
from fairlead.transfer.place import Place
from fairlead.tune.result import TuneResult
from fairlead_build.build import StageState
from fairlead_build.check import CheckResult
from fairlead_build.diff import Difference, FileChange
from fairlead_build.distribution.pull_store import PulledImage
from fairlead_build.distribution.push import Part
from fairlead_build.formats.images import ImageEntry
from fairlead_build.importing.folder import Imported

FILE = "answers.schema.json"


def _of(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


# In these, a key that ends in `?` may be absent; a list of one shape is a list of those; of several in a tuple, it has one.
_SIGNATURE = {
    "key": str,
    "key_file": str,
    **{k: v for k, v in _of(Statement).items() if k != "key"},
}
_NCCL = {
    "library": str, "library_file": str, "runtime": str, "plugin": str, "plugin_file": str, "interface": int,
    "file": str, "env": Mapping[str, str], "networks": [str], "providers": [str], "devices": [str],
}  # fmt: skip
_PREPARED: dict[str, Any] = {
    "image": {"path": str, "digest": str, "os": str, "glibc": str, "mpis": [str]},
    "site": {"name": str, "reason": str},
    "mpi": {"mode": str, "planned": str, "file": str, "names": [str]},
    "launcher": Launcher,
    "engine": Engine,
    "binds": [Bind],
    "env": Mapping[str, str],
    "unset": [str],
    "staging": Staging | None,
    "nccl": (_NCCL, None),
    "lines": [Line],
    "findings": [Finding],
    "refused": bool,
    "comm": {
        "backend": str, "why": str, "forced": bool, "env": Mapping[str, str], "others": [Option],
    },
    "signature": (_SIGNATURE, None),
}  # fmt: skip
_STAGE: dict[str, Any] = {
    "place": Place, "folder": str, "mount": str, "nodes": int, "in": [{**_of(Moved), "bytes_per_s": float}],
    "out": [{**_of(Moved), "bytes_per_s": float}], "kept": [{"node": str, "name": str, "path": str}],
    "findings": [Finding],
}  # fmt: skip
_RESULTS = ({"out": [{**_of(Moved), "bytes_per_s": float}], "findings": [Finding]}, None)
_LAUNCHED: dict[str, Any] = {
    "proof?": {
        "asked": int, "planned_file": str, "planned_inode": int, "planned_title": str,
        "ranks": [RankProof], "findings": [Finding], "seconds": float, "bound": [str], "holds": bool,
    },
    "nccl_proof?": (_of(NcclProof), None),
    "worlds?": [{**_of(World), "title": str}],
    "observed?": [{
        "rank": str, "host": str, "pid": int, "program": str, "how": str, "planned": [str],
        "foreign": [{"path": str, "title": str}],
    }],
    "exit_code?": int,
    "ranks?": [{"rank": str, "exit_code": int}],
    "seconds?": float,
    "output_dir?": str | None,
    "page?": str,
    "report?": str,
    "record?": str,
    "error?": Finding | None,
    "stage?": _STAGE,
}  # fmt: skip
_DRY_RUN = {**_PREPARED, "steps": [str], "dry_run": bool}
_WRITTEN = {
    "page": str | None, "document": str | None, "rows": str | None, "kept": str | None,
    "references": str | None, "refused": [Finding],
}  # fmt: skip
# What is infinite is null.
_BAND: dict[str, Any] = dict.fromkeys(("value", "low", "high"), float | None)
_POINT = {
    "nodes": int, "ranks": int, "step_s": _BAND, "efficiency": _BAND, "dominant": str,
    "step": {name: hint | None for name, hint in _of(Step).items()},
}  # fmt: skip
_LOCK = {
    "architecture": str, "inputs_sha256": str, "source_date_epoch": int, "debs": int, "wheels": int,
    "download_bytes": int, "indexes": [str], "tools": Mapping[str, str],
}  # fmt: skip
_LINE = {"command_line": str, "dry_run?": bool}
_KEY = {"key": str | None, "public": str, "private?": str, "dry_run": bool}
_REMOVED = {"images": [Stored], "unpacked": [str], "bytes": int, "dry_run": bool}
_SET = {name: hint for name, hint in _of(Described).items() if name != "shards"}
_NOTEBOOK = {
    "name": str, "image": str, "ranks": int, "host": str, "pid": int, "folder": str, "ended": str, "url": str,
    "socket": str,
}  # fmt: skip
_SESSION = {
    "name": str, "image": str, "fairlead": str, "pid": int, "host": str, "started": float, "tls": bool, "ranks": int,
    "folder": str, "cores?": int,
}  # fmt: skip
_MATRIX = {
    "id": str, "name": str, "owner": str, "shape": [int], "form": _of(Form), "ndim": int, "bytes": int | None,
    "ranks": [int], "counts": [int], "names": [str], "index": str, "sealed": bool,
    "layout": str, "tiles": BlockCyclic | None,
}  # fmt: skip
# By kind; several shapes where an answer has one of them.
ANSWERS: dict[str, dict[str, Any] | tuple[dict[str, Any], ...]] = {
    "error": {"exit_code": int, "findings": [Finding]},
    "preflight": {**_PREPARED, "seconds": float},
    "explain": {**_PREPARED, "command_line": str, "collectives": Mapping[str, str]},
    "why-not": {"library": str, "lines": [Line]},
    "run": {**_PREPARED, **_LINE, **_LAUNCHED},
    "shell": {**_PREPARED, **_LINE},
    "script": {"scheduler": str, "script": str, "file": str, "submit": str},
    "data-list": {"sets": [_SET]},
    "data-describe": {**_SET, "shards": [ListedFile]},
    "data-pack": {"out": str, "format": str, "files?": int, "shards?": int},
    "data-verify": {**_SET, "wrong": [str], "holds": bool},
    "data-sync": {**_of(SyncPlan), "bytes": int, "dry_run": bool, "left_out": [str]},
    "data-share": {
        "place": str, "links?": Mapping[str, str], "output?": str | None, "with?": [str], "revoked?": bool,
    },
    "data-cache": {"folder": str, "files": [Kept], "partial_bytes": int, "removed": [Kept]},
    "images": {"images": [Stored], "unpacked": [Unpacked], "bytes": int},
    "images-remove": _REMOVED,
    "images-prune": _REMOVED,
    "key": _KEY,
    "keys": {"keys": [{"key": str, "path": str}], "folders": [str]},
    "doctor": {
        "errors": int, "warnings": int, "seconds": float,
        "findings": [{
            **_of(Finding), "fix": ({"does": str, "needs_root": bool, "command?": str}, None),
        }],
    },
    "notebook": _NOTEBOOK,
    "notebook-list": {"sessions": [_NOTEBOOK]},
    "notebook-stop": _NOTEBOOK,
    "bridge-serve": _SESSION,
    "bridge-stop": _SESSION,
    "bridge-status": {
        "sessions": [{
            **_SESSION, "ended": str, "state": str, "why?": str, "up_s?": float, "matrices?": [_MATRIX],
            "operations?": [Operation],
            "workers?": [{
                "rank": int, "host": str, "used": int, "peak": int, "most": int, "resident_peak": int, "busy": str,
            }],
            "clients?": [{
                "name": str, "workers": int, "exclusive": bool, "busy": str, "connected": bool,
            }],
        }],
    },
    "serve-start": {"url": str, "folder": str, "runs": [str]},
    "serve-check": {
        "runs": [{"name": str, "title": str, "command": [str], "parameters": [str]}],
    },
    "serve-token": {"name": str, "token": str | None, "expires": float},
    "serve-tokens": {
        "tokens": [{"name": str, "submits": bool, "created": float, "expires": float}],
    },
    "serve-revoke": {"name": str, "dry_run": bool},
    "bridge-libraries": {
        "libraries": [{
            "name": str, "title": str, "lacks": [str],
            "functions": [{"name": str, "signature": str, "doc": str, "inputs": Mapping[str, bool]}],
        }],
    },
    "site": {"site": Site},
    "site-compare": {"sites": [str], "contradictions": int, "variables": [Variable]},
    "site-list": {
        "sites": [{
            "name": str, "summary": str, "family": bool, "lineage": [str], "since": str, "until": str,
            "values": Mapping[str, int], "files": [str],
        }],
        "wrong": Mapping[str, tuple[Finding, ...]],
    },
    "site-new": {"path": str, "text": str, "written": bool},
    "site-capture-written": {"path": str, "node": str, "site": str, "mpis": [str], "bytes": int},
    "site-detect": {
        "profile": str | None, "by": str, "reasons": [str], "notes": [str], "ties": [str],
        "against": Mapping[str, tuple[str, ...]], "guess": bool, "candidates": [str],
        "cautions": [str], "facts": SiteFacts, "draft": str | None,
    },
    "site-why-not": {
        "site": str, "fits": bool, "detected": str | None, "expired": str, "reasons": [str],
        "clues": [{"what": str, "says": str, "seen": str}],
    },
    "site-check": {"site": str, "machine": str, "differs": int, "values": [Compared]},
    "site-export": {
        "target": str, "site": str, "dry_run": bool,
        "files": [{"path": str, "mode": str, "goes": str, "text?": str}],
    },
    "site-schema": {"path": str | None, "json_schema": Any},
    "inspect": {
        "image": {
            **{k: v for k, v in _of(Image).items() if k != "installed"},
            "packages": Mapping[str, Mapping[str, str]], "tree_sha256": str,
        },
        "frameworks": Mapping[str, str],
    },
    "sign": {"image": str, "signature": str, "dry_run": bool, "signed": Statement},
    "verify": {"image": str, "signature": _SIGNATURE},
    "sign-record": {"record": str, "signature": str, "dry_run": bool, "key": str | None},
    "verify-record": {"record": str, "key": str},
    "replay": {
        "record": str, "signed_by": str | None, "dry_run": bool, "same": bool | None, "differences": [RunDifference],
        "results": [str], "seconds": {"recorded": float, "now": float | None},
    },
    "train": (
        {"report": str, "page": str, "proof": Proof, "result": TrainResult, "stage": _RESULTS}, _DRY_RUN,
    ),
    "bench-collectives": _of(CollectivesBench),
    "tune": (
        {"page": str, "report": str, "best_file": str, "result": TuneResult, "findings": [Finding]}, _DRY_RUN,
    ),
    "bench-collectives-plan": {"plans": [_PREPARED], "steps": [str], "dry_run": bool},
    "validate": ({"headline": str, **_of(Validation), **_WRITTEN, "stage": _RESULTS}, _DRY_RUN),
    "project": {
        "fabric": Network, "synchronous": [_POINT], "delayed": [_POINT], "assumed": [str],
        "answers": {
            "keep": float, "nodes": int, "batch": (_BAND, None), "delayed_batch": (_BAND, None),
            "synchronous_to": _BAND, "delayed_to": _BAND, "holds": [float],
        },
        "sentences": [str],
    },
    "run-report": {
        "fairlead": str, "verdict": Verdict, **_of(Report),
        "training?": {**_of(TrainResult), "efficiency": float, "scores": Mapping[str, float]},
    },
    "report": {"id": str, "verdict": str, "headline": str, "page": str, "document": str, "rows": str},
    "report-compare": {
        **_of(Comparison), "fail_if_slower": float | None, "failed": [str], "page": str | None,
    },
    "build": {
        "recipe": str, "key": str, "dry_run": bool, "cached": bool, "image": ImageEntry | None,
        "outputs": [str], "stages": [StageState], "findings": [Finding],
        "check?": {"same": bool, **_of(CheckResult)},
    },
    "push": {
        "reference": str, "digest": str, "sif": ({"reference": str, "digest": str}, None),
        "signature": str | None,
        "engine": ({"name": str, "address": str, "image": str, "id": str}, None),
        "dry_run": bool, "digest_before": str | None, "bytes_sent": int, "parts": [Part],
    },
    "pull": {
        "reference": str, "digest": str, "digest_before": str | None, "moved": bool,
        "dry_run": bool, "cached": bool, "source": str,
        "bytes_transferred": int, "bytes_to_transfer": int, "image": PulledImage | None,
        "output": str | None, "signed": bool,
    },
    "diff": {
        "a": str, "b": str, **_of(Difference),
        "files": {
            "added": int, "removed": int, "changed": int, "bytes": int, "paths": [FileChange],
        },
    },
    "recipe": {"path": str, "sha256": str, "recipe": Any, "lock": (_LOCK, None)},
    "recipe-list": {"recipes": [{
        "name": str, "summary": str, "path": str, "accelerator": str, "locked": bool,
    }]},
    "recipe-requirements": {
        "python": str, "packages": [{"name": str, "version": str, "sha256": str}],
    },
    "recipe-check": {
        "recipe": str, "path": str, "locked": bool, "not_locked_because": str, "findings": [Finding],
    },
    "recipe-new": {"dry_run": bool, "path": str, "text": str},
    "recipe-schema": {"path": str | None, "json_schema": Any},
    "recipe-import": _of(Imported),
    "recipe-lock": (
        {
            "dry_run": bool, "path": str, "lock": _LOCK, "archive": str | None, "findings": [Finding],
            "moves": [{"package": str, "before": str | None, "after": str | None}],
        },
        {"dry_run": bool, "path": str, "inputs": Any},
    ),
    "recipe-lock-tools": {
        "dry_run": bool, "path": str, "tools": [str], "before": Mapping[str, str],
        "after": Mapping[str, str],
    },
    "recipe-render": {
        "recipe": str, "folder": str, "pinned": bool, "dry_run": bool, "files": [{"path": str, "change": str}],
    },
    "report-list": {"validations": [dict.fromkeys(
        ("id", "file", "begun", "site", "verdict", "headline"), str
    )]},
}  # fmt: skip


def schema() -> dict[str, Any]:
    """The schema of every answer: which one holds is a matter of the answer's ``schema``."""
    definitions: dict[str, Any] = {}
    chosen = []
    for kind, fields in ANSWERS.items():
        shapes = fields if isinstance(fields, tuple) else (fields,)
        head = {"schema": {"const": f"fairlead/{kind}"}, "version": {"const": SCHEMA_VERSION}}
        objects = [_object(shape, definitions, head) for shape in shapes]
        definitions[f"answer-{kind}"] = objects[0] if len(objects) == 1 else {"anyOf": objects}
        chosen.append(
            {
                "if": {"properties": {"schema": {"const": f"fairlead/{kind}"}}},
                "then": {"$ref": f"#/definitions/answer-{kind}"},
            }
        )
    return {
        "$schema": DRAFT,
        "title": "Answers of fairlead's verbs to --json",
        "type": "object",
        "properties": {"schema": {"enum": [f"fairlead/{kind}" for kind in ANSWERS]}},
        "required": ["schema", "version"],
        "allOf": chosen,
        "definitions": definitions,
    }


def _shape(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if hint is None:
        return {"type": "null"}
    if isinstance(hint, tuple):
        return {"anyOf": [_shape(one, definitions) for one in hint]}
    if isinstance(hint, dict):
        return _object(hint, definitions, {})
    if isinstance(hint, list):
        return {"type": "array", "items": _shape(hint[0], definitions)}
    return shape_of(hint, definitions, _name_of)


def _name_of(cls: type) -> str:
    """Several rooms have a class of one name."""
    return f"{cls.__module__.removeprefix('fairlead.')}.{cls.__qualname__}"


def _object(
    fields: Mapping[str, Any], definitions: dict[str, Any], head: dict[str, Any]
) -> dict[str, Any]:
    made = {}
    for name, hint in fields.items():
        shape = _shape(hint, definitions)
        # What is left out of some answers is null in others.
        made[name.removesuffix("?")] = (
            {"anyOf": [shape, {"type": "null"}]} if name.endswith("?") and shape else shape
        )
    return {
        "type": "object",
        "properties": {**head, **made},
        "required": [*head, *(name for name in fields if not name.endswith("?"))],
        "additionalProperties": False,
    }


def text() -> str:
    """The schema as it is published."""
    return schema_text(schema())


def main() -> None:
    root = checkout()
    if root is None:
        raise SystemExit("the schema belongs to a checkout of fairlead")
    with atomic_write(Path(root, "docs/reference", FILE), "w") as out:
        out.write(text())


if __name__ == "__main__":
    main()
