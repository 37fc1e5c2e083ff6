"""The verb ``fairlead push``."""

from __future__ import annotations

from typing import Any

import click

from fairlead.base.errors import fail
from fairlead.base.progress import human_bytes
from fairlead.cli.declare import JSON, argument, declared, option
from fairlead.cli.screen import answer, progress, table

INSECURE = option("--insecure", "Allow plain HTTP where the host does not speak HTTPS.")


@click.command()
@declared
def push(
    image: str,
    reference: str = argument(metavar="REF"),
    engine: bool = option("--engine", "Load, tag and push with Docker or Podman."),
    insecure: bool = INSECURE,
    dry_run: bool = option("--dry-run", "Show what would be sent; send nothing."),
    as_json: bool = JSON,
) -> None:
    """Push an image to a registry, or load it into Docker's or Podman's store.

    `docker://` references get the image as OCI layers, for Podman, Docker and Apptainer, and its SIF
    next to them under TAG-sif, for `fairlead pull` and `apptainer pull oras://`; `oras://` references
    get the SIF only. What the registry has is not sent again. Logins are those of `podman login`,
    `docker login` and `apptainer registry login`.

    `docker-daemon:NAME:TAG` loads and tags the image in the engine that listens at $DOCKER_HOST, or
    at the usual sockets of Podman and Docker. With --engine that engine also pushes it to REF.

    \b
    fairlead push mpi-base docker://registry.example.org/ml/mpi-base:1
    fairlead push ./image.sif oras://registry.example.org/ml/image:1
    fairlead push mpi-base docker-daemon:localhost/mpi-base:1
    fairlead push mpi-base docker://registry.example.org/ml/mpi-base:1 --dry-run
    """
    from fairlead_build.engines.store import SCHEME

    if engine or reference.startswith(SCHEME):
        _by_engine(image, reference, engine, insecure, dry_run, as_json)
        return
    from fairlead_build.cache.store import Cache
    from fairlead_build.distribution.push import find_source, reach, source_of
    from fairlead_build.distribution.push import push as give
    from fairlead_build.registry.reference import parse_reference

    cache, shown = Cache.default(), progress(as_json)
    cache.make()
    layers = parse_reference(reference).scheme == "docker"
    origin = find_source(image, layers, cache)
    client = reach(reference, origin, insecure=insecure, dry_run=dry_run)
    with source_of(origin, cache, shown) as source:
        result = give(client, source, cache, shown, dry_run=dry_run)
    sif = {"reference": result.sif_reference, "digest": result.sif_digest}
    document = _document(
        reference=result.reference,
        digest=result.digest,
        sif=sif if result.sif_reference else None,
        signature=result.signature_reference or None,
        dry_run=dry_run,
        digest_before=result.before or None,
        bytes_sent=result.bytes_sent,
        parts=result.parts,
    )
    if dry_run:
        rows = [(p.what, p.state, human_bytes(p.bytes), p.digest) for p in result.parts]
        answer(as_json, "push", document, table(rows, ("PART", "STATE", "SIZE", "DIGEST")))
        return
    text = f"{result.reference}@{result.digest}"
    if result.sif_reference and result.sif_reference != result.reference:
        text += f"\n{result.sif_reference}@{result.sif_digest}"
    state, moved = ("unchanged" if result.before == result.digest else "pushed"), ""
    if result.before and state == "pushed":
        moved = f"; the tag meant {result.before} until now"
    more = f"{state}: {human_bytes(result.bytes_sent)} sent{moved}"
    answer(as_json, "push", document, text, more)


def _by_engine(
    image: str, text: str, send: bool, insecure: bool, dry_run: bool, as_json: bool
) -> None:
    from fairlead_build.cache.store import Cache
    from fairlead_build.distribution.push import find_source, source_of
    from fairlead_build.engines.socket import connected
    from fairlead_build.engines.store import SCHEME, Stored, load, name_of, parse_name
    from fairlead_build.engines.store import push as send_on
    from fairlead_build.registry.reference import parse_reference

    if insecure:
        why = "whether a registry may speak plain HTTP is set for the engine in registries.conf(5)"
        raise fail("push-engine-insecure", why=why, image=image)
    if send and not text.startswith("docker://"):
        why = "an engine pushes layers to docker:// references, and manages its store itself"
        raise fail("push-engine", text=text[:200], why=why, image=image)
    named = text.startswith(SCHEME)
    reference = parse_name(text if named else SCHEME + str(parse_reference(text))[9:])
    again = f"fairlead push {image} {text}{' --engine' if send else ''}"
    cache, shown = Cache.default(), progress(as_json)
    cache.make()
    with connected(again) as engine:
        if dry_run:
            stored = Stored(engine.name, engine.address, name_of(reference), "", 0)
        else:
            with source_of(find_source(image, True, cache), cache, shown) as source:
                assert source.layout is not None
                stored = load(engine, source.layout, reference, again, shown)
            if send:
                stored = send_on(engine, stored, reference, again, shown)
    names = {"name": stored.engine, "address": stored.address, "image": stored.name}
    document = _document(
        reference=text,
        digest=stored.digest,
        engine={**names, "id": stored.image_id},
        dry_run=dry_run,
        bytes_sent=stored.bytes_sent,
    )
    if dry_run:
        then = f", then pushed to {text}" if send else ""
        would = f"{image} would be loaded into {stored.engine} as {stored.name}{then}"
        answer(as_json, "push", document, would)
        return
    state = "loaded" if stored.bytes_sent else "unchanged"
    more = f"{state}: {human_bytes(stored.bytes_sent)} sent to {stored.engine}"
    if send and not stored.digest:
        more = f"its digest is unknown: the registry answers only to the engine\n{more}"
    where = f"{text}@{stored.digest}" if stored.digest else stored.name
    answer(as_json, "push", document, where, more)


def _document(**values: Any) -> dict[str, Any]:
    keys = ("reference", "digest", "sif", "signature", "engine", "dry_run", "digest_before")
    return {**dict.fromkeys(keys), "bytes_sent": 0, "parts": [], **values}
