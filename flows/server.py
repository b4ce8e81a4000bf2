"""Prefect, locally: one server on the loopback with its own home, started when no ``PREFECT_API_URL`` is set.

The ephemeral server that Prefect starts by itself takes 12-21 s at every run and gives up on a fresh home; this one is
a plain child process, dies with us (``PR_SET_PDEATHSIG``), reports nothing to anybody, and writes to a log file.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workspace.errors import SurroundingsError
from workspace.lab import home

START_TIMEOUT_S = 300.0  # a fresh home on a busy machine takes a minute
PR_SET_PDEATHSIG = 1
QUIET = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "PREFECT_LOGGING_LEVEL": "WARNING",
    "PREFECT_LOGGING_SERVER_LEVEL": "WARNING",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    "PREFECT_SERVER_UI_ENABLED": "false",
    "PREFECT_CLI_PROMPT": "false",
    "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",
}


def prefect_home() -> Path:
    return home() / "prefect"


def environment(api_url: str) -> dict[str, str]:
    """What a process needs to talk to that server; a person's own PREFECT_* settings win."""
    wanted = {"PREFECT_HOME": str(prefect_home()), "PREFECT_API_URL": api_url, **QUIET}
    return {name: os.environ.get(name, value) for name, value in wanted.items()}


class Server:
    """A server that may still be starting; ``wait`` returns when it answers."""

    def __init__(self, api_url: str, process: subprocess.Popen[bytes] | None, log: Path) -> None:
        self.api_url = api_url
        self._process = process
        self._log = log

    def wait(self) -> None:
        """Return when the API is healthy; SurroundingsError with the end of the log if it does not come up."""
        deadline = time.monotonic() + (START_TIMEOUT_S if self._process else 10.0)
        while not _healthy(self.api_url):
            ended = self._process is not None and self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                tail = self._log.read_text(errors="replace")[-600:] if self._process and self._log.exists() else ""
                raise SurroundingsError(
                    f"no Prefect server answers at {self.api_url} {tail}".rstrip(),
                    remedy="unset PREFECT_API_URL to have one started here"
                    if not self._process
                    else f"see {self._log}",
                )
            time.sleep(0.1)

    def stop(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def prefect_server() -> Iterator[Server]:
    """The configured server, or one of ours that starts in the background and is stopped at the end.

    Sets this process's Prefect environment, so it must be entered before ``prefect`` is imported.
    """
    configured = os.environ.get("PREFECT_API_URL")
    log = prefect_home() / "server.log"
    saved = {name: os.environ.get(name) for name in environment("")}
    if configured:
        os.environ.update(environment(configured))
        server = Server(configured, None, log)
    else:
        port = _free_port()
        api_url = f"http://127.0.0.1:{port}/api"
        os.environ.update(environment(api_url))
        server = Server(api_url, _start(port, log), log)
    try:
        yield server
    finally:
        server.stop()
        for name, value in saved.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _start(port: int, log: Path) -> subprocess.Popen[bytes]:
    log.parent.mkdir(parents=True, exist_ok=True)
    factory = "prefect.server.api.server:create_app"
    command = [sys.executable, "-m", "uvicorn", "--factory", factory, "--host", "127.0.0.1", "--port", str(port)]
    parent = os.getpid()
    libc = ctypes.CDLL(None, use_errno=True)

    def die_with_parent() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died between fork and prctl
            os._exit(1)

    with log.open("ab") as stream:
        return subprocess.Popen(
            [*command, "--log-level", "warning"],
            stdin=subprocess.DEVNULL, stdout=stream, stderr=stream,
            preexec_fn=die_with_parent,  # noqa: PLW1509  two system calls, no lock, no allocation
            start_new_session=True,
        )  # fmt: skip


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _healthy(api_url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{api_url}/health", timeout=2) as reply:  # noqa: S310  loopback or configured
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False
