"""The warm side of a sandbox: imports torch and triton once, forks one child per candidate, keeps its deadline.

``python -m kernels.guest`` in the container, with TRITON_INTERPRET=1. A request is a message of ``kernels/wire.py``;
the answer is a status header with the frames that the child wrote, as they are. The guest never looks into them.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from kernels import confine
from kernels.wire import pack, unpack
from workspace.sandbox_guest import leave_channel, serve

CHUNK_BYTES = 1 << 20
MOST_FACTOR = 6


class _Deadline:
    """Wall clock without the time in which the child was ready to run but the machine was busy with others.

    A child that sleeps is not ready to run. The extra time ends at ``MOST_FACTOR`` times the deadline.
    """

    def __init__(self, child: int, started: float, timeout_s: float) -> None:
        self._path, self._started, self._timeout_s = Path(f"/proc/{child}/schedstat"), started, timeout_s

    def left_s(self) -> float:
        """Seconds left, as known now."""
        waited_s = 0.0
        with contextlib.suppress(OSError, ValueError, IndexError):
            waited_s = int(self._path.read_text(encoding="ascii").split()[1]) / 1e9
        passed_s = time.monotonic() - self._started
        return min(self._timeout_s + waited_s, MOST_FACTOR * self._timeout_s) - passed_s


class Guest:
    """Forks and waits. The harness is made once."""

    def __init__(self) -> None:
        from kernels.child import prepare

        self.harness = prepare()
        confine.hide_from_others()

    def answer(self, request: bytes) -> bytes:
        """Run one request in a child; status, and what the child wrote."""
        header, _ = unpack(request)
        started = time.monotonic()
        output = os.memfd_create("output")
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            self._be_child(request, writing, output)
        os.close(writing)
        deadline = _Deadline(child, started, float(header["timeout_s"]))
        stream, reason = self._collect(reading, deadline, int(header["max_reply_bytes"]))
        os.close(reading)
        status = self._end(child, reason, deadline)
        status["wall_s"] = round(time.monotonic() - started, 4)
        status["output_bytes"] = os.fstat(output).st_size
        status["output_limit"] = int(header["output_bytes"])
        os.close(output)
        return pack(status, stream)

    def _be_child(self, request: bytes, writing: int, output: int) -> None:
        """Never returns."""
        status = 1
        try:
            leave_channel()
            nothing = os.open("/dev/null", os.O_RDONLY)
            os.dup2(nothing, 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            confine.close_everything_but(writing)
            from kernels.child import Child

            Child(request, self.harness, lambda data: _write_all(writing, data)).run()
            status = 0
        except BaseException:  # noqa: BLE001 - a forked child must not run its parent's code
            traceback.print_exc()
        finally:
            os._exit(status)

    @staticmethod
    def _collect(reading: int, deadline: _Deadline, most: int) -> tuple[bytes, str]:
        """Everything until the child closes its end, the deadline passes or it wrote too much."""
        parts: list[bytes] = []
        size = 0
        while (left := deadline.left_s()) > 0:
            ready, _, _ = select.select([reading], [], [], left)
            if not ready:
                continue
            data = os.read(reading, CHUNK_BYTES)
            if not data:
                return b"".join(parts), "closed"
            size += len(data)
            if size > most:
                return b"", "oversized"
            parts.append(data)
        return b"".join(parts), "timeout"

    @staticmethod
    def _end(child: int, reason: str, deadline: _Deadline) -> dict[str, Any]:
        """Kill the child unless it ends by itself by the deadline; how it ended."""
        while reason == "closed":
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                return _ended(reason, status)
            if deadline.left_s() <= 0:
                reason = "timeout"
            time.sleep(0.001)
        os.kill(child, signal.SIGKILL)
        return _ended(reason, os.waitpid(child, 0)[1])


def _ended(reason: str, status: int) -> dict[str, Any]:
    if os.WIFSIGNALED(status):
        return {"ended": reason, "signal": os.WTERMSIG(status), "exit": None}
    return {"ended": reason, "signal": None, "exit": os.WEXITSTATUS(status)}


def _write_all(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def main() -> None:
    """Serve until the host hangs up."""
    guest = Guest()
    if len(sys.argv) > 1:  # a Unix socket somewhere else: the guest as a plain process
        serve(guest.answer, sys.argv[1])
    else:
        serve(guest.answer)


if __name__ == "__main__":
    main()
