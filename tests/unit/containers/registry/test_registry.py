"""References, credentials, challenges and manifests: whatever is written in them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.base.errors import ExitCode, FairleadError
from fairlead_build.registry.auth import auth_files, find_credential
from fairlead_build.registry.manifest import (
    DOCKER_LIST,
    OCI_INDEX,
    OCI_MANIFEST,
    Index,
    Manifest,
    read_document,
)
from fairlead_build.registry.problems import plain
from fairlead_build.registry.reference import Reference, parse_reference
from fairlead_build.registry.transport import Challenge, read_challenges

A = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("text", "host", "repository", "tag", "digest"),
    [
        ("docker://alpine", "docker.io", "library/alpine", "latest", ""),
        ("docker://alpine:3", "docker.io", "library/alpine", "3", ""),
        ("docker://ml/base:1.0", "docker.io", "ml/base", "1.0", ""),
        ("docker://index.docker.io/alpine", "docker.io", "library/alpine", "latest", ""),
        ("docker://localhost/x", "localhost", "x", "latest", ""),
        ("docker://127.0.0.1:5000/a/b:c", "127.0.0.1:5000", "a/b", "c", ""),
        ("oras://[::1]:5000/a/b", "[::1]:5000", "a/b", "latest", ""),
        (f"docker://r.example.org/a@{A}", "r.example.org", "a", "", A),
        (f"docker://r.example.org/a:t@{A}", "r.example.org", "a", "t", A),
    ],
)
def test_reference_is_taken_apart(
    text: str, host: str, repository: str, tag: str, digest: str
) -> None:
    found = parse_reference(text)
    assert found == Reference(text.partition(":")[0], host, repository, tag, digest)
    assert parse_reference(str(found)) == found
    assert found.wanted == (digest or tag)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "alpine",
        "docker:/x",
        "http://x/y",
        "docker://",
        "docker:///x",
        "docker://r.example.org/",
        "docker://r.example.org/UPPER",
        "docker://r.example.org/a:",
        "docker://r.example.org/a:.x",
        "docker://r.example.org/a@sha256:12",
        f"docker://r.example.org/a@sha512:{'a' * 128}",
        "docker://r.example.org:port/a",
        "docker://-r.example.org/a",
        "docker://r.example.org/a//b",
        "docker://r.example.org/../a",
        "docker://r.example.org/a?x=1",
        "docker://r.example.org/a b",
        "docker://r.example.org/a\x1b[2J",
        f"docker://r.example.org/{'a' * 256}",
        f"docker://r.example.org/a:{'t' * 129}",
    ],
)
def test_reference_that_is_none_is_reported(text: str) -> None:
    with pytest.raises(FairleadError) as caught:
        parse_reference(text)
    (finding,) = caught.value.findings
    assert caught.value.code == ExitCode.USAGE and finding.check == "reference"
    assert "\x1b" not in finding.what


@pytest.mark.parametrize(
    "text", ["docker://me:secret@r.example.org/a", "oras://me:se/secret@r:1/a"]
)
def test_reference_with_a_password_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(FairleadError) as caught:
        parse_reference(text)
    assert "secret" not in str(caught.value.findings[0].to_json())


@given(st.text(max_size=80).map(lambda t: f"docker://{t}") | st.text(max_size=80))
def test_reference_of_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = parse_reference(text)
    except FairleadError:
        return
    assert parse_reference(str(found)) == found


# --- credentials -------------------------------------------------------------------------------


def auth_file(path: Path, content: Any) -> dict[str, str]:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return {"REGISTRY_AUTH_FILE": str(path), "HOME": str(path.parent), "PATH": ""}


def encoded(user: str, password: str) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}


def found(reference: str, environ: dict[str, str]) -> tuple[str, str] | None:
    credential = find_credential(parse_reference(reference), environ)
    return (credential.user, credential.password) if credential else None


def test_credential_of_the_narrowest_name_is_taken(tmp_path: Path) -> None:
    environ = auth_file(
        tmp_path / "auth.json",
        {
            "auths": {
                "r.example.org": encoded("host", "1"),
                "r.example.org/ml": encoded("ml", "2"),
                "r.example.org/ml/base": encoded("base", "3:4"),
            }
        },
    )
    assert found("docker://r.example.org/ml/base:1", environ) == ("base", "3:4")
    assert found("docker://r.example.org/ml/other", environ) == ("ml", "2")
    assert found("docker://r.example.org/mlx", environ) == ("host", "1")
    assert found("docker://r.example.org:5000/ml/base", environ) is None


@pytest.mark.parametrize("key", ["https://index.docker.io/v1/", "docker.io", "index.docker.io"])
def test_credential_of_docker_hub_is_known_by_its_old_names(tmp_path: Path, key: str) -> None:
    environ = auth_file(tmp_path / "auth.json", {"auths": {key: encoded("me", "x")}})
    assert found("docker://alpine", environ) == ("me", "x")


def test_credential_files_are_the_usual_ones_in_their_order(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "run")}
    names = [str(path.relative_to(tmp_path)) for path in auth_files(environ)]
    assert names == [
        "run/containers/auth.json",
        ".config/containers/auth.json",
        ".docker/config.json",
        ".apptainer/docker-config.json",
    ]
    for number, path in reversed(list(enumerate(auth_files(environ)))):
        auth_file(path, {"auths": {"r.example.org": encoded(f"user{number}", "x")}})
        assert found("docker://r.example.org/a", environ) == (f"user{number}", "x")


def test_credential_helper_is_reported_the_host_and_never_by_an_argument(tmp_path: Path) -> None:
    helper = tmp_path / "docker-credential-chest"
    helper.write_text(
        "#!/bin/sh\nread host\n"
        f'echo "$* $host" >> {tmp_path}/asked\n'
        'echo \'{"ServerURL": "", "Username": "<token>", "Secret": "t0ken"}\'\n'
    )
    helper.chmod(0o755)
    environ = auth_file(tmp_path / "c.json", {"credHelpers": {"r.example.org": "chest"}})
    environ["PATH"] = f"{tmp_path}:/usr/bin:/bin"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", environ["PATH"])
        credential = find_credential(parse_reference("docker://r.example.org/a"), environ)
    assert credential is not None and credential.identity_token == "t0ken"
    assert "t0ken" not in repr(credential)
    assert (tmp_path / "asked").read_text() == "get r.example.org\n"


def test_credential_helper_that_is_missing_is_named(tmp_path: Path) -> None:
    environ = auth_file(tmp_path / "c.json", {"credsStore": "nowhere"})
    with pytest.raises(FairleadError) as caught:
        find_credential(parse_reference("docker://r.example.org/a"), environ)
    (finding,) = caught.value.findings
    assert finding.check == "auth-helper" and "docker-credential-nowhere" in finding.what


@pytest.mark.parametrize(
    "content",
    [
        '{"auths": {"r.example.org": {"auth": "c2VjcmV0',
        '{"auths": {"r.example.org": {"auth": "!secret!"}}}',
        '{"auths": {"r.example.org": {"auth": "c2VjcmV0"}}}',
        '{"auths": ["secret"]}',
        '["secret"]',
        "[" * 100_000,
    ],
)
def test_credential_file_that_is_damaged_is_named_and_not_quoted(
    tmp_path: Path, content: str
) -> None:
    environ = auth_file(tmp_path / "auth.json", content)
    with pytest.raises(FairleadError) as caught:
        find_credential(parse_reference("docker://r.example.org/a"), environ)
    (finding,) = caught.value.findings
    assert finding.check == "auth-file" and finding.where == str(tmp_path / "auth.json")
    assert not any(word in str(finding.to_json()) for word in ("secret", "c2VjcmV0"))


def test_credential_file_that_is_named_and_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FairleadError) as caught:
        find_credential(
            parse_reference("docker://r/a:1"), {"REGISTRY_AUTH_FILE": f"{tmp_path}/none"}
        )
    assert caught.value.findings[0].check == "auth-file"


# --- challenges --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "challenges"),
    [
        ('Basic realm="x"', [Challenge("basic", "x")]),
        (
            'Bearer realm="https://a/t?x=1,2",service="s p",scope="repository:a/b:pull,push"',
            [Challenge("bearer", "https://a/t?x=1,2", "s p")],
        ),
        (
            'Bearer realm=plain , service="a \\" b", error="x", Basic realm="y"',
            [Challenge("bearer", "plain", 'a " b'), Challenge("basic", "y")],
        ),
        ("Negotiate, Basic realm=x", [Challenge("negotiate"), Challenge("basic", "x")]),
        ("", []),
        ('="x"', []),
    ],
)
def test_challenge_is_read(header: str, challenges: list[Challenge]) -> None:
    assert read_challenges(header) == challenges


@given(st.text(max_size=200))
def test_challenge_of_any_text_is_read(header: str) -> None:
    assert all(c.scheme for c in read_challenges(header))


# --- manifests ---------------------------------------------------------------------------------


def manifest(**changes: Any) -> bytes:
    item = {"mediaType": "application/x", "digest": A, "size": 3}
    value = {"schemaVersion": 2, "config": item, "layers": [item], **changes}
    return json.dumps({k: v for k, v in value.items() if v is not None}).encode()


def test_manifest_is_read_by_its_own_media_type_or_by_its_fields() -> None:
    for own in (OCI_MANIFEST, None):
        read = read_document(manifest(mediaType=own), "", "r")
        assert isinstance(read, Manifest) and read.layers[0].size == 3
        assert read.media_type == OCI_MANIFEST
    index = {"schemaVersion": 2, "manifests": []}
    read_index = read_document(json.dumps(index).encode(), DOCKER_LIST, "r")
    assert isinstance(read_index, Index) and read_index.media_type == DOCKER_LIST


ITEM: dict[str, Any] = {"mediaType": "application/x", "digest": A, "size": 3}


@pytest.mark.parametrize(
    ("data", "media_type", "word"),
    [
        (b"", "", "not JSON"),
        (b"[" * 1_000_000, "", "not JSON"),
        (b"[]", "", "not a JSON object"),
        (b"9" * 5000, "", "not JSON"),
        (b" " * ((4 << 20) + 1), "", "4194304 at most"),
        (b'{"schemaVersion": 1, "fsLayers": []}', "", "pushed again"),
        (manifest(), OCI_INDEX, "not that of its media type"),
        (manifest(mediaType=OCI_INDEX), "", "not that of its media type"),
        (manifest(mediaType=OCI_MANIFEST), DOCKER_LIST, "was sent as"),
        (manifest(mediaType="text/\x1b[2J"), "", "media type"),
        (manifest(mediaType=7), "", "media type"),
        (manifest(manifests=[]), "", "a manifest and an index at once"),
        (manifest(layers=None), "", "`layers` is not a list"),
        (manifest(layers=[ITEM] * 1025), "", "1024 at most"),
        (manifest(config={**ITEM, "size": -1}), "", "no sensible size"),
        (manifest(config={**ITEM, "size": True}), "", "no sensible size"),
        (manifest(config={**ITEM, "size": 1e9}), "", "no sensible size"),
        (manifest(config={**ITEM, "size": 1 << 60}), "", "no sensible size"),
        (manifest(config={**ITEM, "digest": "sha256:../../x"}), "", "no sha256 digest"),
        (manifest(config={**ITEM, "digest": "md5:" + "a" * 32}), "", "no sha256 digest"),
        (manifest(config={**ITEM, "annotations": {"a": 1}}), "", "table of text"),
        (manifest(annotations=[]), "", "table of text"),
        (manifest(config="x"), "", "`config` is not a JSON object"),
    ],
)
def test_manifest_that_is_hostile_is_refused(data: bytes, media_type: str, word: str) -> None:
    with pytest.raises(FairleadError) as caught:
        read_document(data, media_type, "docker://r/a:1")
    (finding,) = caught.value.findings
    assert finding.check == "manifest" and word in finding.why and finding.why.isprintable()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(A),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(
        st.sampled_from(["schemaVersion", "mediaType", "config", "layers", "manifests", "digest",
                         "size", "platform", "annotations"]),
        inner,
        max_size=6,
    ),
    max_leaves=24,
)  # fmt: skip


@given(JSON.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=60), st.text())
def test_manifest_of_any_bytes_is_read_or_refused(data: bytes, media_type: str) -> None:
    try:
        read = read_document(data, media_type, "r")
    except FairleadError:
        return
    assert read.data == data


def test_words_of_others_are_one_printable_line_without_secrets() -> None:
    assert plain("a\x1b[2J\nb  secret", ("secret",)) == "a [2J b ***"
    assert len(plain("x" * 5000)) < 400
