"""A tunnel to a port of this machine, as ``ssh -L`` is one, that can be killed and comes up again at the same port."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType


class Tunnel:
    """A context manager; ``port`` is the near end's.

    Args:
        to: the port at the far end.
    """

    def __init__(self, to: int):
        self._to, self.port = to, 0
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._relays: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Tunnel:
        threading.Thread(target=self._loop.run_forever, name="tunnel", daemon=True).start()
        self.up()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.down()
        self._loop.call_soon_threadsafe(self._loop.stop)

    def up(self) -> None:
        """Takes connections."""
        self._now(self._up())

    def down(self) -> None:
        """Ends every connection, and takes none."""
        self._now(self._down())

    def _now(self, what: object) -> None:
        asyncio.run_coroutine_threadsafe(what, self._loop).result(30)  # type: ignore[arg-type]

    async def _up(self) -> None:
        self._server = await asyncio.start_server(self._take, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _down(self) -> None:
        assert self._server is not None
        self._server.close()
        for relay in self._relays:
            relay.cancel()
        await asyncio.gather(*self._relays, return_exceptions=True)
        await self._server.wait_closed()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._relays.add(task)
        far: asyncio.StreamWriter | None = None
        try:
            back, far = await asyncio.open_connection("127.0.0.1", self._to)
            await asyncio.gather(_copied(reader, far), _copied(back, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._relays.discard(task)
            for end in (writer, far):
                if end is not None:
                    end.transport.abort()


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
