"""A record as an RO-Crate: a Process Run Crate 0.5 of the Workflow Run RO-Crate profiles, for readers without fairlead.

Sources: RO-Crate 1.1, https://w3id.org/ro/wfrun/process/0.5.
"""

from __future__ import annotations

import mimetypes
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fairlead.record.model import Data, RunRecord

CRATE = "ro-crate-metadata.json"
_CRATE, _PROCESS = "https://w3id.org/ro/crate/1.1", "https://w3id.org/ro/wfrun/process/0.5"
_TERMS = "https://w3id.org/ro/terms/workflow-run"
_OF_RUNS = (
    "ContainerImage",
    "containerImage",
    "environment",
    "sha256",
)  # terms that RO-Crate lacks
_FORMATS = {
    "sbom.cdx.json.gz": ("Bill of materials of the image: CycloneDX JSON, compressed", "application/gzip"),
    "lock.toml.gz": ("Lock that the image was built from, compressed", "application/gzip"),
    "run.json": ("The run in fairlead's own words, for `fairlead replay`", "application/json"),
}  # fmt: skip

Entity = dict[str, Any]


def crate(record: RunRecord, files: Iterable[str]) -> dict[str, Any]:
    """The content of ``ro-crate-metadata.json``.

    Args:
        files: names of the files next to it.
    """
    parts = list(_parts(record, files))
    command = shlex.join(record.before.parameters.command)
    title = f"{command[:80]}{'…' if len(command) > 80 else ''} in {record.before.image.name}"
    root: Entity = {
        "@id": "./",
        "@type": "Dataset",
        "name": f"Run of {title}",
        "description": f"What `{title}` ran with, read and wrote; {_ended(record)}",
        "datePublished": record.outcome.ended,
        "author": {"@id": "#user"},
        "license": "No licence is stated: the record holds digests of the data, not the data",
        "conformsTo": {"@id": _PROCESS},
        "hasPart": [_reference(part) for part in parts if part["@type"] != "PropertyValue"],
        "mentions": {"@id": f"#{record.id}"},
    }
    process: Entity = {
        "@id": _PROCESS,
        "@type": "CreativeWork",
        "name": "Process Run Crate",
        "version": "0.5",
    }
    head: Entity = {
        "@id": CRATE,
        "@type": "CreativeWork",
        "conformsTo": {"@id": _CRATE},
        "about": {"@id": "./"},
    }
    graph = [head, root, process, *parts, *_actors(record), *_environment(record), _action(record)]
    unique = {entity["@id"]: entity for entity in reversed(graph)}
    return {
        "@context": [f"{_CRATE}/context", {term: f"{_TERMS}#{term}" for term in _OF_RUNS}],
        "@graph": list(reversed(unique.values())),
    }


def _ended(record: RunRecord) -> str:
    outcome = record.outcome
    return outcome.error or f"it ended with exit code {outcome.exit_code}"


def _reference(entity: Mapping[str, Any]) -> dict[str, str]:
    return {"@id": entity["@id"]}


def _parts(record: RunRecord, files: Iterable[str]) -> Iterator[Entity]:
    for name in files:
        title, form = _FORMATS[name]
        yield {"@id": name, "@type": "File", "name": title, "encodingFormat": form}
    before = record.before
    for data in (*before.inputs, *record.results):
        if data.kind != "absent":
            yield _data(data)
    if before.script:
        script: Entity = {
            **_data(before.script),
            "@type": ["File", "SoftwareSourceCode"],
            "softwareRequirements": [{"@id": "#mpi"}, {"@id": "#fairlead"}],
        }
        code = before.code
        script["version"] = (code and code.commit) or f"sha256 {before.script.sha256}"
        if code and code.remote:
            script["codeRepository"] = code.remote
        yield script


def _id_of(data: Data) -> str:
    if data.kind == "weights":
        return f"#{data.name}"
    uri = Path(data.path).as_uri()
    return f"{uri}/" if data.kind == "folder" else uri


def _data(data: Data) -> Entity:
    """A file or folder outside of the crate, by its digest."""
    if data.kind == "weights":
        title = f"sha256 of the {data.name}, over all ranks"
        return {"@id": _id_of(data), "@type": "PropertyValue", "name": title, "value": data.sha256}
    folder = data.kind == "folder"
    entity: Entity = {
        "@id": _id_of(data),
        "@type": "Dataset" if folder else "File",
        "name": data.name,
        "contentSize": str(data.bytes),
    }
    if folder:  # no property of RO-Crate is for a digest over a folder
        return {**entity, "identifier": f"sha256 of its tree: {data.sha256}"}
    form = mimetypes.guess_type(data.name)[0] or "application/octet-stream"
    return {**entity, "sha256": data.sha256, "encodingFormat": form}


def _actors(record: RunRecord) -> Iterator[Entity]:
    before, host = record.before, record.before.host
    yield {"@id": "#user", "@type": "Person", "name": host.user}
    yield {
        "@id": "#fairlead",
        "@type": "SoftwareApplication",
        "name": "fairlead",
        "softwareVersion": before.fairlead,
    }
    yield {
        "@id": "#mpi",
        "@type": "SoftwareApplication",
        "name": before.mpi.title,
        "softwareVersion": before.mpi.title.rpartition(" ")[2],
        "description": f"{before.mpi.file}, of the {before.mpi.mode if before.mpi.mode == 'host' else 'image'}",
    }
    if not before.script:
        program = before.parameters.command[0] if before.parameters.command else "true"
        yield {
            "@id": "#program",
            "@type": "SoftwareApplication",
            "name": program,
            "softwareVersion": f"of the image {before.image.sha256 or before.image.tree_sha256}",
            "url": f"ni:///sha-256;{before.image.sha256 or before.image.tree_sha256}",
            "softwareRequirements": [{"@id": "#mpi"}, {"@id": "#fairlead"}],
        }
    image = before.image
    kind = {"additionalType": {"@id": f"{_TERMS}#SIFImage"}} if image.format == "sif" else {}
    yield {
        "@id": "#image",
        "@type": "ContainerImage",
        **kind,
        "name": image.name,
        "sha256": image.sha256 or image.tree_sha256,
        "description": f"{image.format}; the digest is that of {'its file system' if image.sha256 else 'its tree'}"
        + (f"; recipe {image.recipe}, lock sha256 {image.lock_sha256}" if image.recipe else ""),
    }


def _environment(record: RunRecord) -> Iterator[Entity]:
    for place, variables in _variables(record):
        for name, value in variables.items():
            yield {
                "@id": f"#{place}-{name}",
                "@type": "PropertyValue",
                "name": name,
                "value": value,
            }


def _variables(record: RunRecord) -> Iterator[tuple[str, Mapping[str, str]]]:
    environment = record.before.environment
    yield "shell", environment.shell
    yield "container", environment.container


def _several(name: str, values: list[dict[str, str]]) -> Entity:
    """A property with these values: a list only where there are several."""
    return {name: values if len(values) > 1 else values[0]} if values else {}


def _time(utc: str) -> str:
    return f"{utc.removesuffix('Z')}+00:00"


def _action(record: RunRecord) -> Entity:
    before, outcome = record.before, record.outcome
    groups = record.ranks.groups
    summary = "; ".join(
        f"ranks {group.ranks}: {group.version}, {group.transport}" for group in groups[:8]
    )
    action: Entity = {
        "@id": f"#{record.id}",
        "@type": "CreateAction",
        "name": shlex.join(before.parameters.words),
        "description": f"{record.ranks.count} ranks on {', '.join([*record.ranks.hosts][:16]) or before.host.name}"
        + (f"; {summary}" if summary else ""),
        "startTime": _time(outcome.began),
        "endTime": _time(outcome.ended),
        "instrument": {"@id": _id_of(before.script) if before.script else "#program"},
        "agent": {"@id": "#user"},
        **_several("object", [{"@id": _id_of(data)} for data in before.inputs]),
        **_several("result", [{"@id": _id_of(d)} for d in record.results if d.kind != "absent"]),
        "containerImage": {"@id": "#image"},
        **_several("environment", [_reference(variable) for variable in _environment(record)]),
        "actionStatus": f"http://schema.org/{'Failed' if outcome.exit_code else 'Completed'}ActionStatus",
    }
    return {**action, "error": _ended(record)} if outcome.exit_code else action
