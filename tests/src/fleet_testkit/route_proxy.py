"""A TCP proxy between two servers that a test may cut, for network partitions."""

import asyncio
import contextlib
import threading


class RouteProxy:
    """Listens on a port and passes everything on to another one, in a thread of its own."""

    def __init__(self, *, port: int, to_port: int) -> None:
        self._port = port
        self._to_port = to_port
        self._is_cut = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)

    def stop(self) -> None:
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def cut(self) -> None:
        """Abort open connections and refuse new ones; nothing passes any more when this returns."""
        asyncio.run_coroutine_threadsafe(self._drop_all(), self._loop).result(10)

    def is_cut(self) -> bool:
        return self._is_cut

    def mend(self) -> None:
        self._is_cut = False

    async def _listen(self) -> None:
        await asyncio.start_server(self._on_connection, "127.0.0.1", self._port)

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_cut():
            writer.close()
            return
        try:
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._to_port)
        except OSError:
            writer.close()
            return
        if self.is_cut():  # in the meantime
            writer.close()
            to_writer.close()
            return
        self._writers |= {writer, to_writer}
        await asyncio.gather(self._pass_on(reader, to_writer), self._pass_on(to_reader, writer))
        self._writers -= {writer, to_writer}

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def _drop_all(self) -> None:
        self._is_cut = True
        for writer in self._writers:
            writer.transport.abort()
