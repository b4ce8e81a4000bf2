"""Finding and asking the Docker engine.

The engine is looked for at ``DOCKER_HOST``, then at the system's socket, then at the user's own (rootless) one. One
that does not answer within seconds is an error with its remedy, never a hang.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workspace.errors import SurroundingsError

if TYPE_CHECKING:
    from docker import DockerClient

PING_TIMEOUT_S = 3
OLDEST_API = "1.41"
REMEDY = "run scripts/docker-setup.sh, or start Docker and make sure this user may use it"
SYSTEM_SOCKET = Path("/var/run/docker.sock")


@dataclass(frozen=True)
class EngineInfo:
    """What the engine says of itself. ``lacks`` names protections that it cannot give (empty when all is well)."""

    version: str
    api_version: str
    url: str
    storage_driver: str
    cgroup_version: str
    cpus: int
    memory_bytes: int
    rootless: bool
    selinux: bool
    lacks: tuple[str, ...]


def engine_url() -> str:
    """Return the address at which an engine is looked for."""
    if url := os.environ.get("DOCKER_HOST"):
        return url
    own = Path(os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")) / "docker.sock"
    if not SYSTEM_SOCKET.exists() and own.exists():
        return f"unix://{own}"
    return f"unix://{SYSTEM_SOCKET}"


def connect(timeout_s: float = 60.0) -> DockerClient:
    """Return a client of an engine that answers; SurroundingsError, within a few seconds, when none does.

    ``timeout_s`` bounds each later request.
    """
    import docker
    from docker.errors import DockerException
    from requests import RequestException

    url = engine_url()
    try:
        if url.startswith("unix://"):
            # The SDK forgets to close a socket that does not connect: look before it does.
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as first:
                first.settimeout(PING_TIMEOUT_S)
                first.connect(url.removeprefix("unix://"))
        # A first client with a short patience asks, at an address without a version, which version to speak.
        probe = docker.DockerClient(base_url=url, version=OLDEST_API, timeout=PING_TIMEOUT_S)
        try:
            version = str(probe.api.version(api_version=False)["ApiVersion"])
        finally:
            probe.close()
        return docker.DockerClient(base_url=url, version=version, timeout=int(timeout_s), max_pool_size=32)
    except (DockerException, RequestException, OSError, ValueError, KeyError) as error:
        raise SurroundingsError(f"no Docker engine answers at {url}: {_reason(error)}", remedy=REMEDY) from error


def engine_info(client: DockerClient) -> EngineInfo:
    """Ask the engine what it is and what it can enforce."""
    info: dict[str, Any] = client.info()
    options = [str(option) for option in info.get("SecurityOptions") or []]

    def has(name: str) -> bool:
        return any(option == name or option.startswith(f"name={name}") for option in options)

    wanted = {
        "memory limit": bool(info.get("MemoryLimit")),
        "process limit": bool(info.get("PidsLimit")),
        "processor limit": bool(info.get("CpuCfsQuota", info.get("CPUCfsQuota", True))),
        "seccomp": has("seccomp"),
    }
    return EngineInfo(
        version=str(info.get("ServerVersion", "")),
        api_version=str(client.api.api_version),
        url=engine_url(),
        storage_driver=str(info.get("Driver", "")),
        cgroup_version=str(info.get("CgroupVersion", "1")),
        cpus=int(info.get("NCPU", 1)),
        memory_bytes=int(info.get("MemTotal", 0)),
        rootless=has("rootless"),
        selinux=has("selinux"),
        lacks=tuple(name for name, there in wanted.items() if not there),
    )


def _reason(error: BaseException) -> str:
    """The innermost plain reason; the SDK wraps it three times in its own reprs."""
    text = str(error)
    for sign, reason in (
        ("Permission denied", "this user may not use its socket"),
        ("No such file or directory", "there is no such socket"),
        ("Connection refused", "nothing listens there"),
        ("timed out", f"no answer within {PING_TIMEOUT_S} s"),
    ):
        if sign in text:
            return reason
    return text


@contextlib.contextmanager
def engine_errors() -> Iterator[None]:
    """Turn failures of the engine and of the connection to it into SurroundingsError."""
    from docker.errors import APIError, DockerException
    from requests import RequestException

    try:
        yield
    except APIError as error:
        reason = str(error.explanation or error)
        raise SurroundingsError(f"the Docker engine refused: {reason}", remedy=_remedy(reason)) from error
    except (DockerException, RequestException) as error:
        raise SurroundingsError(f"the Docker engine does not answer any more: {error}", remedy=REMEDY) from error


def _remedy(reason: str) -> str:
    if "no space left" in reason:
        return "free some disk space (docker system df shows what Docker holds)"
    return "see the engine's log; nightshift doctor checks the set-up"
