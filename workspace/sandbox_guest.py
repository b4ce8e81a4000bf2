"""The inner side of a warm sandbox: answers framed requests on one Unix socket. Standard library only.

    from workspace.sandbox_guest import serve
    serve(handle)        # handle(request: bytes) -> bytes; does what is slow (imports) before

A frame is an 8-byte big-endian length and that many bytes. The host closes the socket when it is done, or dies;
``serve`` returns then. An exception of the handler ends the process with its traceback on standard error: the host sees
the sandbox gone and throws it away.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable

CHANNEL = "/channel/socket"
HEADER = struct.Struct(">Q")
MOST_BYTES = 1 << 32  # a request of the host; it is trusted, this only catches a broken stream

_open: list[socket.socket] = []


def serve(handler: Callable[[bytes], bytes], path: str = CHANNEL) -> None:
    """Connect to the host and answer its requests one after the other until it hangs up."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(path)
        _open.append(connection)
        try:
            while (request := receive(connection)) is not None:
                reply = handler(request)
                connection.sendall(HEADER.pack(len(reply)))
                connection.sendall(reply)
        except (BrokenPipeError, ConnectionResetError):
            return  # the host has gone, and with it the need for an answer
        finally:
            _open.clear()


def leave_channel() -> None:
    """For a forked child that runs untrusted code: close its copy of the connection, before anything else."""
    while _open:
        os.close(_open.pop().detach())


def receive(connection: socket.socket) -> bytes | None:
    """Return the next frame, None if the other side hung up between frames; EOFError within one."""
    header = _exactly(connection, HEADER.size)
    if header is None:
        return None
    (length,) = HEADER.unpack(header)
    if length > MOST_BYTES:
        raise ValueError(f"a frame of {length} bytes")
    payload = _exactly(connection, length)
    if payload is None:
        raise EOFError("the connection ended within a frame")
    return payload


def _exactly(connection: socket.socket, count: int) -> bytes | None:
    data = bytearray(count)
    view = memoryview(data)
    got = 0
    while got < count:
        size = connection.recv_into(view[got:])
        if size == 0:
            if got == 0:
                return None
            raise EOFError("the connection ended within a frame")
        got += size
    return bytes(data)
