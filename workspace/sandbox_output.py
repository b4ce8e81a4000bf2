"""Reading what a container prints, at its pace or ours, in bounded memory."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from docker.models.containers import Container

LINE_BYTES = 64 * 1024
WAITING_CHUNKS = 256
STDOUT, STDERR = 1, 2


class Tail:
    """The last ``limit`` bytes of a stream."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._data = bytearray()

    def add(self, chunk: bytes) -> None:
        """Append, dropping from the front only now and then so that many small chunks stay cheap."""
        self._data += chunk
        if len(self._data) > 2 * self.limit:
            del self._data[: -self.limit]

    def text(self) -> str:
        """Return the tail as text, whatever bytes it holds."""
        return bytes(self._data[-self.limit :]).decode("utf-8", "replace")


class Lines:
    """Cuts a byte stream into lines; one without an end is cut at ``LINE_BYTES``."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[str]:
        """Return the lines that are complete now."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > LINE_BYTES:
            lines.append(self._rest)
            self._rest = b""
        return [line[:LINE_BYTES].rstrip(b"\r").decode("utf-8", "replace") for line in lines]

    def last(self) -> list[str]:
        """Return what stands after the last line's end, if anything."""
        return self.feed(b"\n") if self._rest else []


class OutputReader:
    """Reads both streams of a container in a thread; the caller takes complete lines of standard output from ``lines``.

    Made before the container starts, so that nothing is missed. Past ``limit`` bytes ``on_flood`` is called and the
    rest is drained; ``stdout`` and ``stderr`` keep their tails.
    """

    def __init__(self, container: Container, limit: int) -> None:
        self.stdout = Tail(limit)
        self.stderr = Tail(limit)
        self._limit = limit
        api = container.client.api  # type: ignore[union-attr]
        self._stream: Any = api.attach_socket(str(container.id), {"stdout": 1, "stderr": 1, "stream": 1})
        # Bounded: a slow taker of lines slows the job down instead of filling this process's memory.
        self._ready: queue.Queue[list[str] | None] = queue.Queue(maxsize=WAITING_CHUNKS)
        self._abandoned = threading.Event()
        self._on_flood: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._read, name="sandbox-output", daemon=True)

    def start(self, on_flood: Callable[[], None]) -> None:
        """Begin to read."""
        self._on_flood = on_flood
        self._thread.start()

    def lines(self) -> Iterator[str]:
        """Yield lines as they come, until the container has closed its streams."""
        while (ready := self._ready.get()) is not None:
            yield from ready

    def finish(self) -> None:
        """Wait for the end of the streams, taking no lines any more; the container must have ended."""
        self._abandoned.set()
        if self._thread.ident is None:
            self._close()
        else:
            self._thread.join(timeout=10)

    def _read(self) -> None:
        from docker.utils.socket import frames_iter_no_tty

        total = 0
        lines = Lines()
        try:
            with contextlib.suppress(OSError):
                frames: Iterator[tuple[Any, Any]] = frames_iter_no_tty(self._stream)
                for kind, chunk in frames:
                    total += len(chunk)
                    (self.stdout if kind == STDOUT else self.stderr).add(chunk)
                    if total > self._limit:
                        self._on_flood()
                    elif kind == STDOUT:
                        self._pass_on(lines.feed(chunk))
            if total <= self._limit:
                self._pass_on(lines.last())
        finally:
            self._pass_on(None)
            self._close()

    def _pass_on(self, ready: list[str] | None) -> None:
        while ready != [] and not self._abandoned.is_set():
            with contextlib.suppress(queue.Full):
                self._ready.put(ready, timeout=0.2)
                return

    def _close(self) -> None:
        # The SDK hands out the file object inside of a response, which owns the connection.
        response = getattr(self._stream, "_response", None)
        with contextlib.suppress(OSError):
            sock = getattr(self._stream, "_sock", None)
            if sock is not None:
                sock.shutdown(socket.SHUT_RDWR)
        if response is not None:
            response.close()
        self._stream.close()
