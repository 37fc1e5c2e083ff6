"""S3, by botocore: AWS and what speaks its protocol (Ceph, Swift, MinIO, …).

Credentials, region and endpoint come from botocore's standard chain: environment, ``~/.aws``, SSO, instance metadata.
Why botocore and not s3fs or obstore: uploads that go on after a kill and errors by their code need the plain protocol,
and it is as fast (``python -m benchmarks object-store``).
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairlead.base.errors import FairleadError, fail
from fairlead.objects.failures import (
    Passing,
    header,
    is_lost,
    no_credentials,
    of_code,
    passing,
    wait_s,
)
from fairlead.objects.model import Body, Object, StoreKind, Upload
from fairlead.objects.url import Url

_CHUNK = 1 << 20
_CONNECTIONS = 64
_CONNECT_S = 10.0
_ATTEMPTS = 2  # of botocore; callers try again, too
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_PLAIN_MD5 = re.compile(r"[0-9a-f]{32}")


class S3:
    """What is below one ``s3://`` URL."""

    in_parts = True

    def __init__(self, url: Url, client: Any = None):
        self.url, self._client = url, client or _client(url)
        self.endpoint = str(self._client.meta.endpoint_url)
        self._no_conditions: set[str] = set()  # headers that the store does not know

    def list(self) -> tuple[tuple[Object, ...], bool]:
        prefix = f"{self.url.key.rstrip('/')}/" if self.url.key.strip("/") else ""
        objects: list[Object] = []
        token: dict[str, str] = {}
        while True:
            with self._failures():
                page = self._client.list_objects_v2(Bucket=self.url.bucket, Prefix=prefix, **token)
            for each in page.get("Contents", ()):
                if name := each["Key"].removeprefix(prefix):
                    objects.append(Object(name, each["Size"], _etag(each)))
            if not page.get("IsTruncated"):
                break
            token = {"ContinuationToken": page["NextContinuationToken"]}
        if objects or not prefix or self.url.key.endswith("/"):
            return tuple(objects), False
        own = self.stat("")
        return ((own[0],), True) if own else ((), False)

    def stat(self, name: str) -> tuple[Object, Mapping[str, str]] | None:
        try:
            with self._failures(name):
                head = self._client.head_object(Bucket=self.url.bucket, Key=self._key(name))
        except FairleadError as exc:
            if exc.findings[0].check == "object-missing":
                return None
            raise
        metadata = _lower(head.get("Metadata", {}))
        return Object(name, head["ContentLength"], _etag(head)), metadata

    @contextmanager
    def read(self, each: Object, start: int, end: int) -> Iterator[Body]:
        ranged = {"Range": f"bytes={start}-{end - 1}"} if end > start else {}
        with self._failures(each.name):
            answer = self._client.get_object(
                Bucket=self.url.bucket, Key=self._key(each.name), IfMatch=each.etag, **ranged
            )
        if (etag := _etag(answer)) != each.etag:  # a store that ignores If-Match
            answer["Body"].close()
            raise of_code("PreconditionFailed", f"its ETag is {etag}", self.url, each.name)
        if answer["ContentLength"] != end - start:
            answer["Body"].close()
            raise of_code(
                "NotImplemented", "it ignores the range of a request", self.url, each.name
            )
        size = int(answer.get("ContentRange", f"/{end - start}").rpartition("/")[2])
        stream = answer["Body"]

        def chunks() -> Iterator[bytes]:
            with self._failures(each.name):
                while chunk := stream.read(_CHUNK):
                    yield chunk

        try:
            yield Body(_lower(answer.get("Metadata", {})), size, chunks())
        finally:
            stream.close()

    def part_bytes(self, each: Object) -> int:
        plain = each.etag.strip('"')
        if _PLAIN_MD5.fullmatch(plain):
            return max(each.size, 1)
        if not re.fullmatch(r"[0-9a-f]{32}-\d+", plain):
            return 0
        try:
            with self._failures(each.name):
                head = self._client.head_object(
                    Bucket=self.url.bucket, Key=self._key(each.name), PartNumber=1
                )
        except FairleadError:
            return 0  # the store cannot say
        size = int(head["ContentLength"])
        parts = int(plain.rpartition("-")[2])
        return size if size and -(-each.size // size) == parts else 0

    def put(
        self, name: str, content: bytes, metadata: Mapping[str, str], replaces: str | None = None
    ) -> None:
        put = functools.partial(
            self._client.put_object,
            Bucket=self.url.bucket,
            Key=self._key(name),
            Body=content,
            ContentMD5=_md5(content),
            Metadata=dict(metadata),
        )
        self._on_condition(name, put, replaces)

    def put_file(self, name: str, path: str, metadata: Mapping[str, str]) -> None:
        self.put(name, Path(path).read_bytes(), metadata)

    def begin(self, name: str, metadata: Mapping[str, str]) -> tuple[Upload, Mapping[int, str]]:
        place = {"Bucket": self.url.bucket, "Key": self._key(name)}
        with contextlib.suppress(FairleadError), self._failures(name):
            # Not every store lists uploads; without a list, this one starts over.
            answer = self._client.list_multipart_uploads(
                Bucket=place["Bucket"], Prefix=place["Key"]
            )
            for upload in answer.get("Uploads", ()):
                if upload["Key"] == place["Key"]:
                    token = upload["UploadId"]
                    return Upload(name, token), self._parts(place, token)
        with self._failures(name):
            begun = self._client.create_multipart_upload(**place, Metadata=dict(metadata))
        return Upload(name, begun["UploadId"]), {}

    def _parts(self, place: Mapping[str, str], token: str) -> dict[int, str]:
        parts: dict[int, str] = {}
        marker: dict[str, int] = {}
        while True:
            page = self._client.list_parts(**place, UploadId=token, **marker)
            for part in page.get("Parts", ()):
                parts[part["PartNumber"]] = part["ETag"].strip('"')
            if not page.get("IsTruncated"):
                return parts
            marker = {"PartNumberMarker": page["NextPartNumberMarker"]}

    def put_part(self, upload: Upload, number: int, content: bytes) -> None:
        with self._failures(upload.name):
            self._client.upload_part(
                Bucket=self.url.bucket,
                Key=self._key(upload.name),
                UploadId=upload.token,
                PartNumber=number,
                Body=content,
                ContentMD5=_md5(content),
            )

    def finish(self, upload: Upload, parts: Mapping[int, str], replaces: str | None = None) -> None:
        listed = [{"PartNumber": n, "ETag": f'"{etag}"'} for n, etag in sorted(parts.items())]
        complete = functools.partial(
            self._client.complete_multipart_upload,
            Bucket=self.url.bucket,
            Key=self._key(upload.name),
            UploadId=upload.token,
            MultipartUpload={"Parts": listed},
        )
        self._on_condition(upload.name, complete, replaces)

    def delete(self, name: str, etag: str | None = None) -> None:
        delete = functools.partial(
            self._client.delete_object, Bucket=self.url.bucket, Key=self._key(name)
        )
        try:
            self._on_condition(name, delete, etag)
        except FairleadError as exc:
            if etag is None or not is_lost(exc):
                raise
            now = self.stat(name)
            if now and now[0].etag != etag:
                raise
            if now:  # Swift compares another ETag, of objects in parts
                self._on_condition(name, delete, None)

    def _on_condition(self, name: str, request: Callable[..., Any], replaces: str | None) -> None:
        """Sends a request that is for an object's version alone, if the store has such conditions.

        Raises:
            FairleadError: another version is there (:func:`is_lost`); the store fails or refuses.
        """
        condition = (
            {} if replaces is None else {"IfMatch": replaces} if replaces else {"IfNoneMatch": "*"}
        )
        if not self._no_conditions & condition.keys():
            try:
                with self._failures(name):
                    request(**condition)
                return
            except FairleadError as exc:
                if not condition or exc.findings[0].check != "object-unsupported":
                    raise
            self._no_conditions |= condition.keys()
        with self._failures(name):
            request()

    def check_readable(self) -> None:
        """Tests that the URL can be listed, by its first object."""
        prefix = f"{self.url.key.rstrip('/')}/" if self.url.key.strip("/") else ""
        with self._failures():
            page = self._client.list_objects_v2(Bucket=self.url.bucket, Prefix=prefix, MaxKeys=1)
        if not page.get("KeyCount"):
            raise of_code("NoSuchKey", "nothing is below this prefix", self.url)

    def access(self) -> tuple[str, str, tuple[str, str, str]]:
        """Endpoint, region and credentials (key, secret, token), for a program that is started."""
        credentials = self._client._request_signer._credentials
        if credentials is None:
            raise no_credentials("NoCredentials", self.url)
        frozen = credentials.get_frozen_credentials()
        values = (frozen.access_key, frozen.secret_key, frozen.token or "")
        return self._client.meta.endpoint_url, self._client.meta.region_name, values

    def check_writable(self) -> None:
        # An upload that is given up at once needs the permission to write, and leaves no object.
        place = {"Bucket": self.url.bucket, "Key": self._key(".fairlead-probe")}
        with self._failures():
            begun = self._client.create_multipart_upload(**place)
        try:
            with self._failures():
                self._client.abort_multipart_upload(**place, UploadId=begun["UploadId"])
        except FairleadError as exc:
            if exc.findings[0].check != "object-unsupported":  # a few stores cannot give one up
                raise

    def link(self, name: str, seconds: int) -> str:
        with self._failures(name):
            made: str = self._client.generate_presigned_url(
                "get_object",
                Params={"Bucket": self.url.bucket, "Key": self._key(name)},
                ExpiresIn=seconds,
            )
        return made

    def policy(self) -> str:
        """The bucket's policy, as JSON; empty without one."""
        try:
            with self._failures():
                return str(self._client.get_bucket_policy(Bucket=self.url.bucket)["Policy"])
        except FairleadError as exc:
            if "NoSuchBucketPolicy" in exc.findings[0].why:
                return ""
            raise

    def set_policy(self, text: str) -> None:
        """Replaces the bucket's policy.

        Raises:
            FairleadError: exit code 2; the store does not know a principal, or this user may not write policies.
        """
        try:
            with self._failures():
                self._client.put_bucket_policy(Bucket=self.url.bucket, Policy=text)
        except Passing:
            raise
        except FairleadError as exc:
            if exc.findings[0].check != "object-failed":
                raise
            raise fail("object-policy", place=self.url, reason=exc.findings[0].why) from None

    def remove_policy(self) -> None:
        """Removes the bucket's policy."""
        with self._failures():
            self._client.delete_bucket_policy(Bucket=self.url.bucket)

    def _key(self, name: str) -> str:
        return self.url.below(name).key if name else self.url.key

    @contextmanager
    def _failures(self, name: str = "") -> Iterator[None]:
        """Errors of botocore as findings."""
        from botocore import exceptions as of_botocore

        try:
            yield
        except of_botocore.ClientError as exc:
            error, meta = exc.response.get("Error", {}), exc.response.get("ResponseMetadata", {})
            code = str(error.get("Code", ""))
            status = str(meta.get("HTTPStatusCode", ""))
            date = header(meta.get("HTTPHeaders", {}), "date")
            code = status if not code or code == "Unknown" else code
            raise of_code(code, str(error.get("Message") or ""), self.url, name, date) from None
        except (of_botocore.ConnectionError, of_botocore.HTTPClientError) as exc:
            raise passing(exc, self.url, name) from None
        except of_botocore.IncompleteReadError as exc:
            raise passing(exc, self.url, name) from None
        except of_botocore.BotoCoreError as exc:
            raise _of_chain(exc, self.url) from None


def _of_chain(exc: Exception, url: Url) -> FairleadError:
    """What is wrong before anything is sent: no credentials, an expired login, a profile that is not there."""
    kind = type(exc).__name__
    reason = f"{kind}: {' '.join(str(exc).split())[:200]}"
    if "Token" in kind or "SSO" in kind:
        return of_code("ExpiredToken", reason, url)
    if "Credential" in kind or "Profile" in kind:
        return no_credentials(reason, url)
    return fail("object-failed", place=url, reason=reason)


def _client(url: Url) -> Any:
    try:
        import botocore.session
        from botocore import exceptions as of_botocore
        from botocore.config import Config
    except ModuleNotFoundError as exc:
        raise fail("object-package", url=url, reason=exc) from None
    try:
        session = botocore.session.Session(profile=url.profile or None)
        settings: dict[str, Any] = {
            "connect_timeout": _CONNECT_S,
            "read_timeout": wait_s(),
            "max_pool_connections": _CONNECTIONS,
            # Else links are signed by version 2 in one region, which newer stores refuse.
            "signature_version": "s3v4",
            "retries": {"mode": "standard", "total_max_attempts": _ATTEMPTS},
            # Content-MD5 and the ETag are compared instead, which every store knows.
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
        }
        region = session.get_config_variable("region") or "us-east-1"
        endpoint = None
        if url.profile:  # its own endpoint, not that of the environment
            endpoint = session.get_scoped_config().get("endpoint_url")
            settings["ignore_configured_endpoint_urls"] = endpoint is None
        scoped = session.get_scoped_config()
        named = any(os.environ.get(name) for name in _ENDPOINTS) and not url.profile
        if named or scoped.keys() & {"endpoint_url", "services"}:
            # Few stores but AWS have a host name for each bucket.
            style = (scoped.get("s3") or {}).get("addressing_style", "path")
            settings["s3"] = {"addressing_style": style}
        config = Config(**settings)
        return session.create_client("s3", region_name=region, endpoint_url=endpoint, config=config)
    except of_botocore.BotoCoreError as exc:
        raise _of_chain(exc, url) from None


def _md5(content: bytes) -> str:
    return base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()


def _etag(answer: Mapping[str, Any]) -> str:
    """An object's ETag, in quotes; some stores list it without, and name it with them elsewhere."""
    return f'"{answer["ETag"].strip(chr(34))}"'


def _lower(metadata: Mapping[str, str]) -> dict[str, str]:
    return {key.lower(): value for key, value in metadata.items()}


STORE = StoreKind(
    ("s3",),
    "S3",
    ("botocore",),
    S3,
    settings={
        "s3": (
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE for one of ~/.aws/credentials",
            "AWS_ENDPOINT_URL, or that of your profile in ~/.aws/config",
        )
    },
)
