"""``fairlead serve``: a REST front for declared runs, its clients and their tokens."""

from __future__ import annotations

import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairlead.cli.declare import FILE_HERE, FOLDER, JSON, argument, declared, option
from fairlead.cli.group import Group
from fairlead.cli.screen import answer, hand_over, say, table
from fairlead.serve import folder as folders
from fairlead.serve import offers, tokens
from fairlead.serve.runs import State

if TYPE_CHECKING:
    from fairlead.serve.app import Service

EPILOG = """\b
Examples:
  fairlead serve check offers.toml
  fairlead serve token alice --days 90
  fairlead serve start offers.toml
  curl -H "Authorization: Bearer $TOKEN" http://127.0.0.1:8642/api/runs
"""
PLACE = "127.0.0.1:8642"
_FOLDER = option(
    "--folder FOLDER", "Folder of tokens and runs.  [default: the user's data folder]", type=FOLDER
)


@click.group(cls=Group, epilog=EPILOG)
def serve() -> None:
    """Let clients with a token start declared runs, watch them, and fetch their records.

    Runs have your rights, and outlive the server. Clients choose a declared run and its parameters, never a command;
    each sees its own runs only.
    """


@dataclass(frozen=True, kw_only=True)
class StartFlags:
    """The options of ``fairlead serve start``."""

    listen: str = option("--listen PLACE", "HOST:PORT, or unix:PATH.", default=PLACE)
    at_once: int = option("--at-once N", "Runs that go on at once.", default=1)
    certificate: Path | None = option(
        "--certificate FILE",
        "TLS certificate; needed where others are on the network.",
        type=FILE_HERE,
    )
    certificate_key: Path | None = option(
        "--certificate-key FILE", "Its private key.", type=FILE_HERE
    )
    folder: Path | None = _FOLDER
    dry_run: bool = option("--dry-run", "Print what would be served, and serve nothing.")
    as_json: bool = JSON


@serve.command(short_help="Serve the runs of a file.")
@declared
def start(file: Path = argument(type=FILE_HERE), *, flags: StartFlags) -> None:
    """Serve the runs that FILE declares, until Ctrl-C. Runs that go on then are not ended.

    The page of a client's runs is at the address printed; /openapi.json describes the API.

    \b
    fairlead serve start offers.toml
    fairlead serve start offers.toml --listen unix:/run/user/1000/fairlead.socket --at-once 4
    """
    if (flags.certificate is None) != (flags.certificate_key is None):
        raise click.UsageError("--certificate and --certificate-key belong together")
    declared_runs = offers.read(file)
    if flags.dry_run:
        _show(declared_runs, flags.as_json)
        return
    from fairlead.serve.app import Service
    from fairlead.serve.listen import bound

    folder = folders.opened(flags.folder)
    with folders.alone(folder):
        listener, address = bound(flags.listen, flags.certificate is not None)
        service = Service(folder, declared_runs, flags.at_once)
        try:
            _announce(service, address, flags.as_json)
            _serve(service, listener, flags)
        finally:
            listener.close()
            if address.startswith("unix:"):
                Path(address.removeprefix("unix:")).unlink(missing_ok=True)
    going_on = sum(run.state is State.RUNNING for run in service.runs.all())
    if going_on and not flags.as_json:
        say(f"the server has ended; {going_on} runs go on")


def _announce(service: Service, address: str, as_json: bool) -> None:
    names = list(service.offers.run)
    payload = {"url": address, "folder": service.folder, "runs": names}
    answer(as_json, "serve-start", payload, address)
    sys.stdout.flush()
    if not as_json:
        say(f"runs that clients can start: {', '.join(names)}; Ctrl-C ends the server")
        if not tokens.read(service.folder):
            say("there are no clients yet: `fairlead serve token NAME`")


def _serve(service: Service, listener: socket.socket, flags: StartFlags) -> None:
    """Answers clients until SIGINT or SIGTERM."""
    import uvicorn

    from fairlead.serve.app import application

    settings = uvicorn.Config(
        application(service),
        log_level="warning",
        server_header=False,
        access_log=False,
        timeout_graceful_shutdown=5,
        ssl_certfile=flags.certificate,
        ssl_keyfile=flags.certificate_key,
    )
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn raises them again when it has ended
        signal.signal(number, lambda *_: None)
    hand_over(to_ranks=True)
    try:
        uvicorn.Server(settings).run(sockets=[listener])
    finally:
        hand_over(to_ranks=False)


@serve.command(short_help="Check a file of runs.")
@declared
def check(file: Path = argument(type=FILE_HERE), *, as_json: bool = JSON) -> None:
    """Check FILE, and list the runs that clients could start.

    \b
    fairlead serve check offers.toml
    """
    _show(offers.read(file), as_json)


@serve.command(short_help="Make a token for a client.")
@declared
def token(
    name: str,
    read_only: bool = option("--read-only", "It may watch its runs, and start none."),
    days: float = option(
        "--days N", "Days until it expires; 0 for never.", default=365.0, type=click.FloatRange(0)
    ),
    folder: Path | None = _FOLDER,
    dry_run: bool = option("--dry-run", "Print what would be made, and make nothing."),
    as_json: bool = JSON,
) -> None:
    """Make a token for the client NAME, and print it: only its digest is kept.

    \b
    fairlead serve token alice --days 90 > alice.token
    """
    if dry_run:
        answer(as_json, "serve-token", {"name": name, "token": None, "expires": 0.0}, f"would make a token for {name}")  # fmt: skip
        return
    made, text = tokens.new(folders.opened(folder), name, not read_only, days)
    payload = {"name": name, "token": text, "expires": made.expires}
    answer(as_json, "serve-token", payload, text, "this token is not shown again")


@serve.command("tokens", short_help="List the clients.")
@declared
def list_tokens(folder: Path | None = _FOLDER, as_json: bool = JSON) -> None:
    """List the clients, what their tokens may do and when they expire.

    \b
    fairlead serve tokens
    """
    known = tokens.read(folders.opened(folder))
    rows = [
        (t.name, "submit" if t.submits else "read", _expiry(t.expires), "" if t.valid else "expired")
        for t in known
    ]  # fmt: skip
    payload = {
        "tokens": [
            {"name": t.name, "submits": t.submits, "created": t.created, "expires": t.expires}
            for t in known
        ]
    }
    text = table(rows, ("CLIENT", "MAY", "EXPIRES", "")) if rows else "no clients yet"
    answer(as_json, "serve-tokens", payload, text)


@serve.command(short_help="Take a client's token away.")
@declared
def revoke(
    name: str,
    folder: Path | None = _FOLDER,
    dry_run: bool = option("--dry-run", "Print what would be revoked, and change nothing."),
    as_json: bool = JSON,
) -> None:
    """Take the token of the client NAME away, at once. Its runs go on.

    \b
    fairlead serve revoke alice
    """
    place = folders.opened(folder)
    if not dry_run:
        tokens.remove(place, name)
    text = f"{'would revoke' if dry_run else 'revoked'}: the token of {name}"
    answer(as_json, "serve-revoke", {"name": name, "dry_run": dry_run}, text)


def _show(offered: offers.Offers, as_json: bool) -> None:
    rows = []
    for name, offer in offered.run.items():
        choices = "; ".join(f"{key}: {p.allowed}" for key, p in offer.parameters.items())
        rows.append((name, offer.title, choices))
    payload = {
        "runs": [
            {"name": name, "title": offer.title, "command": offer.command, "parameters": list(offer.parameters)}
            for name, offer in offered.run.items()
        ]
    }  # fmt: skip
    answer(as_json, "serve-check", payload, table(rows, ("RUN", "TITLE", "PARAMETERS")))


def _expiry(expires: float) -> str:
    if not expires:
        return "never"
    return time.strftime("%Y-%m-%d", time.localtime(expires))
