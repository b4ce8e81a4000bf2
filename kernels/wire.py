"""What crosses the wall of the sandbox: a JSON header and raw bytes, nothing that is ever unpickled.

    message = 4-byte big-endian header length + header (UTF-8 JSON) + blob
    frames  = 8-byte big-endian length + message, repeated

A tensor in a header is ``{"shape": [...], "dtype": "float32", "at": OFFSET, "size": BYTES}`` into the blob; its bytes
are row-major. Both sides of the wall import this file; it needs only the standard library.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

MAX_HEADER_BYTES = 8 << 20


class WireError(ValueError):
    """The bytes are not a message of this protocol."""


def pack(header: dict[str, Any], blobs: bytes = b"") -> bytes:
    """One message."""
    head = json.dumps(header, separators=(",", ":"), allow_nan=True).encode()
    return struct.pack(">I", len(head)) + head + blobs


def unpack(message: bytes | memoryview) -> tuple[dict[str, Any], memoryview]:
    """Header and blob of a message; ``WireError`` for anything that is not one."""
    view = memoryview(message)
    if len(view) < 4:
        raise WireError("shorter than its own length field")
    (size,) = struct.unpack(">I", view[:4])
    if size > MAX_HEADER_BYTES or 4 + size > len(view):
        raise WireError(f"header of {size} bytes in a message of {len(view)}")
    try:
        header = json.loads(bytes(view[4 : 4 + size]))
    except (ValueError, RecursionError) as error:
        raise WireError(f"header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise WireError("header is not an object")
    return header, view[4 + size :]


def frame(message: bytes) -> bytes:
    """A message with its length in front."""
    return struct.pack(">Q", len(message)) + message


def frames(stream: bytes | memoryview) -> Iterator[memoryview]:
    """The messages of a concatenation of frames; ``WireError`` when the last one is cut off."""
    view, position = memoryview(stream), 0
    while position < len(view):
        if position + 8 > len(view):
            raise WireError("cut off within a length field")
        (size,) = struct.unpack(">Q", view[position : position + 8])
        position += 8
        if position + size > len(view):
            raise WireError(f"frame of {size} bytes, {len(view) - position} left")
        yield view[position : position + size]
        position += size


class Blobs:
    """Collects the raw bytes of tensors and hands out their places."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, data: bytes) -> dict[str, int]:
        """``{"at": offset, "size": length}`` of these bytes."""
        place = {"at": self._size, "size": len(data)}
        self._parts.append(data)
        self._size += len(data)
        return place

    def joined(self) -> bytes:
        """All of them."""
        return b"".join(self._parts)


def slice_of(blob: memoryview, place: dict[str, Any]) -> memoryview:
    """The bytes of a tensor; ``WireError`` when they are not all there."""
    at, size = place.get("at"), place.get("size")
    if type(at) is not int or type(size) is not int or at < 0 or size < 0 or at + size > len(blob):
        raise WireError("a tensor lies outside of the message")
    return blob[at : at + size]
