"""The API: FastAPI over the offers, the clients and their runs. A client sees its own runs only."""

from __future__ import annotations

import io
import itertools
import mimetypes
import tarfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairlead import __version__
from fairlead.base.errors import FairleadError, Finding, error
from fairlead.serve import tokens
from fairlead.serve.offers import Offers
from fairlead.serve.runs import LOG, RECORD, WORK, Run, Runs, State
from fairlead.serve.tokens import Token

_LOOK_S = 0.5  # between two looks for runs that can start
_POLL_S = 0.2
_MOST_BODY = 64 << 10
_MOST_LOG = 1 << 20
_MOST_FILES = 1000
_MOST_WAITING = 100  # runs of a client that are not over
_PAGE = Path(__file__).parent
_FINDINGS = {"content": {"application/json": {"schema": {"type": "object"}}}}
_ANSWERS: dict[int | str, dict[str, Any]] = {
    code: {"description": text, **_FINDINGS}
    for code, text in {
        401: "no valid token", 403: "the token may only read", 404: "the client has no such run",
        409: "the key belongs to another run, or the run is over", 422: "a parameter is wrong",
        429: "the client has too many runs",
    }.items()
}  # fmt: skip


class Submission(BaseModel):
    """What a client asks for."""

    model_config = ConfigDict(extra="forbid")
    run: str = Field(description="Name of an offer.")
    parameters: dict[str, str | int | float] = Field(
        default_factory=dict, description="Those of the offer, by name."
    )


class RunView(BaseModel):
    """A run, as its client sees it. Times are seconds since 1970."""

    id: str
    run: str
    state: State
    parameters: dict[str, str | int | float | bool]
    created: float
    started: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    why: str = ""


class OfferView(BaseModel):
    """An offer, as clients see it."""

    name: str
    title: str
    parameters: dict[str, dict[str, Any]]


class FileView(BaseModel):
    """A file that a client may fetch; size in bytes."""

    name: str
    size: int


@dataclass
class Service:
    """What is served.

    Attributes:
        folder: of tokens and runs.
        at_once: how many runs go on at once.
    """

    folder: Path
    offers: Offers
    at_once: int

    def __post_init__(self) -> None:
        self.runs = Runs(self.folder / "runs")
        self.lock = threading.Lock()  # two requests with one key must not become two runs
        self._over = threading.Event()

    def keep_going(self) -> None:
        """Starts waiting runs until the server ends."""
        while not self._over.wait(_LOOK_S):
            with self.lock, suppress(OSError):
                self.runs.advance(self.at_once)

    def end(self) -> None:
        """Starts no more runs; those that run go on."""
        self._over.set()


def _refusal(status: int, finding: Finding) -> HTTPException:
    """A finding as an answer."""
    return HTTPException(status, [finding.to_json()])


class _Bounded:
    """Ends requests whose body is too large before it is read."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        length = 0

        async def bounded() -> Message:
            nonlocal length
            message = await receive()
            length += len(message.get("body", b""))
            if length > _MOST_BODY:
                raise _refusal(413, error("serve-body", most=_MOST_BODY >> 10))
            return message

        await self.app(scope, bounded, send)


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


Served = Annotated[Service, Depends(_service)]


_BEARER = HTTPBearer(auto_error=False, description="A token of `fairlead serve token`.")


def _client(
    service: Served, sent: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]
) -> Token:
    token = tokens.find(service.folder, sent.credentials) if sent else None
    if token is None:
        raise _refusal(401, error("serve-unauthorized"))
    return token


Client = Annotated[Token, Depends(_client)]


def _submitter(token: Client) -> Token:
    if not token.submits:
        raise _refusal(403, error("serve-read-only", name=token.name))
    return token


Submitter = Annotated[Token, Depends(_submitter)]


def _own(id: str, token: Client, service: Served) -> Run:
    run = service.runs.find(id)
    if run is None or run.order.client != token.name:
        raise _refusal(404, error("serve-run-none", id=id[:64]))
    return run


Own = Annotated[Run, Depends(_own)]
api = APIRouter(prefix="/api", responses=_ANSWERS)


@api.get("/offers")
def offers(token: Client, service: Served) -> list[OfferView]:
    """The runs that can be started, with their parameters."""
    return [
        OfferView(
            name=name,
            title=offer.title,
            parameters={
                key: {"kind": p.kind, **p.model_dump(exclude_none=True)}
                for key, p in offer.parameters.items()
            },
        )
        for name, offer in service.offers.run.items()
    ]


@api.post("/runs", status_code=201)
def submit(
    wanted: Submission,
    token: Submitter,
    service: Served,
    response: Response,
    idempotency_key: Annotated[str, Header(max_length=128)] = "",
) -> RunView:
    """Start a run. The same Idempotency-Key again gives the same run, with status 200."""
    offer = service.offers.run.get(wanted.run)
    if offer is None:
        names = ", ".join(service.offers.run)
        raise _refusal(422, error("serve-offer-none", name=wanted.run[:64], names=names))
    with service.lock:
        waiting = sum(not run.state.over for run in service.runs.of(token.name))
        if waiting >= _MOST_WAITING:
            raise _refusal(429, error("serve-many", count=waiting))
        try:
            run, new = service.runs.submit(
                wanted.run, offer, token.name, wanted.parameters, idempotency_key
            )
        except FairleadError as exc:
            status = 409 if exc.findings[0].check == "serve-key" else 422
            raise HTTPException(status, [f.to_json() for f in exc.findings]) from None
        except OSError as exc:
            raise _refusal(507, error("serve-store", reason=exc.strerror or exc)) from None
    if not new:
        response.status_code = 200
    response.headers["Location"] = f"/api/runs/{run.order.id}"
    return _view(run)


@api.get("/runs")
def runs(
    token: Client,
    service: Served,
    state: State | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> list[RunView]:
    """The client's runs, the latest first."""
    selected = (run for run in service.runs.of(token.name) if state in (None, run.state))
    return [_view(run) for run in itertools.islice(selected, limit)]


@api.get("/runs/{id}")
def one_run(run: Own) -> RunView:
    """One run."""
    return _view(run)


@api.get("/runs/{id}/log", response_class=PlainTextResponse)
def log(
    run: Own,
    service: Served,
    start: Annotated[int, Query(ge=0)] = 0,
    wait: Annotated[float, Query(ge=0, le=30)] = 0,
) -> PlainTextResponse:
    """Output from byte ``start``, at most 1 MiB; with ``wait``, up to so many seconds for more.

    ``X-Next-Start`` is where the next part begins, ``X-State`` how far the run is.
    """
    path = service.runs.folder / run.order.id / LOG
    until = time.monotonic() + wait
    while True:
        now = (
            service.runs.find(run.order.id) or run
        )  # before the text: what comes later is in the next part
        text = _part(path, start)
        if text or now.state.over or time.monotonic() > until:
            break
        time.sleep(_POLL_S)
    headers = {"X-Next-Start": str(start + len(text)), "X-State": now.state.value}
    return PlainTextResponse(text.decode("utf-8", "replace"), headers=headers)


@api.get("/runs/{id}/record", response_class=Response)
def record(run: Own, service: Served) -> Response:
    """The run record, a .tar.gz; `fairlead replay` and `fairlead verify` read the folder in it."""
    folder = service.runs.folder / run.order.id / RECORD
    if not (folder / "run.json").is_file():
        raise _refusal(404, error("serve-record-none", id=run.order.id, state=run.state.value))
    headers = {"Content-Disposition": f'attachment; filename="{run.order.id}.tar.gz"'}
    return Response(_packed(folder, run.order.id), media_type="application/gzip", headers=headers)


@api.get("/runs/{id}/files")
def files(run: Own, service: Served) -> list[FileView]:
    """Those of its files that the offer lets clients fetch."""
    work = service.runs.folder / run.order.id / WORK
    return [
        FileView(name=path.relative_to(work).as_posix(), size=path.stat().st_size)
        for path in _results(work, run.order.results)
    ]


@api.get("/runs/{id}/files/{name:path}", response_class=FileResponse)
def file(run: Own, service: Served, name: str) -> FileResponse:
    """One of its files."""
    work = service.runs.folder / run.order.id / WORK
    for path in _results(work, run.order.results):
        if path.relative_to(work).as_posix() == name:
            # As a download, never shown at the page's address: a result may hold any script.
            kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
            return FileResponse(path, media_type=kind, filename=path.name)
    raise _refusal(404, error("serve-file-none", name=name[:200], id=run.order.id))


@api.post("/runs/{id}/cancel", status_code=202)
def cancel(run: Own, token: Submitter, service: Served) -> RunView:
    """End a run: its ranks get SIGTERM, and SIGKILL later."""
    if run.state.over:
        raise _refusal(409, error("serve-run-over", id=run.order.id, state=run.state.value))
    with service.lock:
        service.runs.cancel(run)
    return _view(service.runs.find(run.order.id) or run)


@asynccontextmanager
async def _life(app: FastAPI) -> AsyncIterator[None]:
    """Starts waiting runs as long as the server is there."""
    service: Service = app.state.service
    thread = threading.Thread(target=service.keep_going, name="runs", daemon=True)
    thread.start()
    yield
    service.end()
    thread.join(5)


def application(service: Service) -> FastAPI:
    """The API of a service, and the page of a client's runs."""
    app = FastAPI(
        title="fairlead serve",
        version=__version__,
        summary="Start declared runs, watch them, and fetch their records.",
        lifespan=_life,
        redoc_url=None,
        docs_url=None,
    )
    app.state.service = service
    app.add_middleware(_Bounded)
    app.add_exception_handler(AnyHTTPException, _answer)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.include_router(api)
    _add_page(app)
    return app


def _add_page(app: FastAPI) -> None:
    """The page of a client's runs, which asks for its token."""
    policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; frame-ancestors 'none'"
    headers = {
        "Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }  # fmt: skip
    for path, name in (("/", "page.html"), ("/page.js", "page.js"), ("/page.css", "page.css")):
        text = (_PAGE / name).read_text("utf-8")
        kind = mimetypes.guess_type(name)[0]

        def serve(text: str = text, kind: str | None = kind) -> Response:
            return Response(text, media_type=kind, headers=headers)

        app.add_api_route(path, serve, include_in_schema=False, response_class=Response)


async def _answer(request: Request, exc: Exception) -> JSONResponse:
    """Findings in the form of `--json`."""
    assert isinstance(exc, AnyHTTPException)
    findings: Any = exc.detail
    if isinstance(findings, str):  # the framework's own
        path = request.url.path[:200]
        finding = (
            error("serve-path", path=path)
            if exc.status_code in (404, 405)
            else error("serve-request", place=path, why=findings)
        )
        findings = [finding.to_json()]
    body = {"schema": "fairlead/error", "version": 1, "findings": findings}
    headers = dict(exc.headers or {})  # 405 names the methods that there are
    if exc.status_code == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(body, exc.status_code, headers)


async def _invalid(request: Request, exc: Exception) -> JSONResponse:
    """What FastAPI finds wrong with a request, as findings."""
    assert isinstance(exc, RequestValidationError)
    findings = [
        error(
            "serve-request", place=".".join(map(str, problem["loc"]))[:200], why=problem["msg"]
        ).to_json()
        for problem in exc.errors()
    ]
    body = {"schema": "fairlead/error", "version": 1, "findings": findings}
    return JSONResponse(body, 422)


def _view(run: Run) -> RunView:
    order, end = run.order, run.end
    return RunView(
        id=order.id, run=order.run, state=run.state, parameters=order.parameters, created=order.created,
        started=run.started, ended=end.ended if end else None,
        exit_code=end.code if end else None, why=end.why if end else "",
    )  # fmt: skip


def _part(path: Path, start: int) -> bytes:
    with suppress(OSError), path.open("rb") as stream:
        stream.seek(start)
        text = stream.read(_MOST_LOG)
        # Not in the middle of a character: the next part would begin with its rest.
        while text and len(text) == _MOST_LOG and text[-1] & 0x80:
            text = text[:-1]
        return text
    return b""


def _results(work: Path, patterns: tuple[str, ...]) -> Iterator[Path]:
    """Regular files below ``work`` by these patterns; a link may lead to any file of the owner's, and is none."""
    root = work.resolve()
    listed: set[Path] = set()
    for pattern in patterns:
        for path in sorted(work.glob(pattern)):
            inside = path.resolve() == root / path.relative_to(work)
            if inside and path.is_file() and path not in listed and len(listed) < _MOST_FILES:
                listed.add(path)
                yield path


def _packed(folder: Path, name: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for path in sorted(folder.iterdir()):
            if path.is_file() and not path.is_symlink():
                archive.add(path, f"{name}/{path.name}", filter=_anonymous)
    return out.getvalue()


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
