"""Sandboxes: model-written code runs here and nowhere else.

    sandboxes = Sandboxes(settings.sandbox, owner=lab.lab_id, scratch=lab.state / "scratch")
    sandboxes.reap()                                             # at the start of a night
    outcome = sandboxes.run(SandboxJob(["python", "-m", "model.trainer", "/in/spec.json"], …))
    with sandboxes.open(SandboxJob(["python", "-m", "kernels.child"], …)) as warm:
        reply = warm.ask(request, timeout_s=20, max_bytes=1 << 20)

A job has no network, no capability, no writable place but /out and /tmp, an unprivileged user and a deadline kept
outside (``sandbox_container`` has the whole list). Whatever it prints, writes or returns is data, never a verdict.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from workspace.docker_engine import EngineInfo, connect, engine_errors, engine_info
from workspace.errors import SurroundingsError
from workspace.sandbox_container import container_options, sandbox_user
from workspace.sandbox_image import Base, make_base
from workspace.sandbox_job import (
    Outcome,
    ReplyTooLarge,
    SandboxFault,
    SandboxGone,
    SandboxJob,
    SandboxLimits,
    SandboxTimeout,
    Status,
)
from workspace.sandbox_output import OutputReader
from workspace.sandbox_owner import Owner, reap_channels, reap_containers
from workspace.sandbox_settings import SandboxSettings
from workspace.sandbox_warm import WarmSandbox
from workspace.sandbox_watch import Watchdog, hand_over, kill, remove, take_back

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container

__all__ = [
    "Outcome",
    "ReplyTooLarge",
    "SandboxFault",
    "SandboxGone",
    "SandboxJob",
    "SandboxLimits",
    "SandboxSettings",
    "SandboxTimeout",
    "Sandboxes",
    "WarmSandbox",
]


class Sandboxes:
    """All sandboxes of this process for one lab.

    ``owner`` is the lab's id; process id, its start time and the boot are added here. ``scratch`` is a folder for the
    sockets of warm sandboxes (the system's temporary folder if None). The engine is first asked at the first use.
    Threads may share one object.
    """

    def __init__(self, settings: SandboxSettings, owner: str, scratch: Path | None = None) -> None:
        self.settings = settings
        self.owner = Owner.current(owner)
        self.scratch = scratch if scratch is not None else Path(tempfile.gettempdir())
        self._client: DockerClient | None = None
        self._engine: EngineInfo | None = None
        self._base: Base | None = None
        self._lock = threading.RLock()
        self._warm: weakref.WeakSet[WarmSandbox] = weakref.WeakSet()
        weakref.finalize(self, _close_all, self._warm)

    def check(self) -> EngineInfo:
        """Return what the engine is; SurroundingsError with a remedy if there is none or it cannot contain anything."""
        with self._lock:
            if self._client is None:
                self._client = connect(self.settings.engine_timeout_s)
            if self._engine is None:
                engine = engine_info(self._client)
                # Without these a sandbox would be one in name only.
                if missing := [name for name in engine.lacks if name != "processor limit"]:
                    raise SurroundingsError(
                        f"the Docker engine at {engine.url} cannot enforce: {', '.join(missing)}",
                        remedy="use an engine with cgroups and seccomp (a rootless one needs systemd's delegation)",
                    )
                self._engine = engine
            return self._engine

    def run(
        self,
        job: SandboxJob,
        on_line: Callable[[str], None] | None = None,
        stop: threading.Event | None = None,
    ) -> Outcome:
        """Run a job to its end and remove its container, whatever happens.

        ``on_line`` gets each line of standard output, in this thread; ``stop``, once set, kills the job. Raises
        SurroundingsError if the engine fails, never for what the job does.
        """
        container = self._create(job)
        try:
            return self._run(container, job, on_line, stop)
        finally:
            with engine_errors():
                remove(container)
            self._take_output(job)

    def open(self, job: SandboxJob) -> WarmSandbox:
        """Start a warm sandbox and wait, at most ``job.limits.timeout_s``, until its guest is ready.

        The command must end in ``workspace.sandbox_guest.serve`` (room "workspace" is added). Raises a SandboxFault if
        the guest does not become ready.
        """
        if "workspace" not in job.rooms:
            job = SandboxJob(**{**vars(job), "rooms": ("workspace", *job.rooms)})
        self.scratch.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=self.owner.channel_prefix(), dir=self.scratch))
        warm = WarmSandbox(folder, job, lambda: self._take_output(job))
        try:
            container = self._create(job, warm.channel)
            with engine_errors():
                warm.begin(container)
        except BaseException:
            warm.close()
            raise
        self._warm.add(warm)
        return warm

    def reap(self) -> list[str]:
        """Remove this lab's containers and socket folders whose owner is dead; return the containers' names."""
        reap_channels(self.scratch)
        self.check()
        with engine_errors():
            return reap_containers(self._docker(), self.owner.lab)

    def close(self) -> None:
        """Throw away the warm sandboxes that are still open, and the connection."""
        for warm in list(self._warm):
            warm.close()
        with self._lock:
            if self._client is not None:
                self._client.close()
            self._client = self._engine = self._base = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _docker(self) -> DockerClient:
        assert self._client is not None
        return self._client

    def _create(self, job: SandboxJob, channel: Path | None = None) -> Container:
        engine = self.check()
        with engine_errors():
            with self._lock:
                if self._base is None:
                    self._base = make_base(self._docker(), self.settings)
            options = container_options(job, self._base, self.settings, self.owner, engine, channel=channel)
            if job.output is not None:
                job.output.mkdir(parents=True, exist_ok=True)
                uid, gid = sandbox_user(engine)
                if os.geteuid() == 0 and uid != 0:
                    hand_over(job.output, uid, gid)
            return self._docker().containers.create(**options)

    def _run(
        self,
        container: Container,
        job: SandboxJob,
        on_line: Callable[[str], None] | None,
        stop: threading.Event | None,
    ) -> Outcome:
        with engine_errors():
            reader = OutputReader(container, job.limits.output_kb * 1024)
        begun = time.monotonic()
        watchdog = Watchdog(
            container,
            begun + job.limits.timeout_s,
            stop=stop,
            output=job.output,
            output_bytes=job.limits.out_mb * 1024 * 1024,
        )
        try:
            with engine_errors():
                container.start()
            watchdog.start()
            reader.start(watchdog.flood)
            for line in reader.lines():
                if on_line is not None:
                    on_line(line)
            with engine_errors():
                # A job may close its streams and live on: it has ended when the engine says so.
                _wait(container)
                container.reload()
        except BaseException:
            kill(container)
            raise
        finally:
            watchdog.finish()
            reader.finish()
        wall_s = time.monotonic() - begun
        state = container.attrs["State"]
        exit_code = int(state["ExitCode"])
        status = _classify(watchdog.reason, bool(state.get("OOMKilled")), exit_code)
        return Outcome(
            status, exit_code, reader.stdout.text(), reader.stderr.text(), wall_s, watchdog.peak_memory_bytes
        )

    def _take_output(self, job: SandboxJob) -> None:
        if job.output is not None and job.output.is_dir():
            take_back(job.output)


def _wait(container: Container) -> None:
    from requests.exceptions import ConnectionError as RequestsConnectionError
    from requests.exceptions import ReadTimeout

    while True:
        with contextlib.suppress(ReadTimeout, RequestsConnectionError):
            container.wait(timeout=10)
            return
        container.client.ping()  # type: ignore[union-attr]


def _classify(reason: Status | None, oom_killed: bool, exit_code: int) -> Status:
    """Our own reason first, then the kernel's, then the job's: it can return any code itself."""
    if reason is not None:
        return reason
    if oom_killed:
        return "out_of_memory"
    return "done" if exit_code == 0 else "failed"


def _close_all(warm: weakref.WeakSet[WarmSandbox]) -> None:
    """At the end of the process, or of a forgotten ``Sandboxes``: leave no container behind."""
    for sandbox in list(warm):
        with contextlib.suppress(SurroundingsError):
            sandbox.close()
