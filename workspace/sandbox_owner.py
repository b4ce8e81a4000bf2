"""Who owns a sandbox: labels that let a later process find and remove what a killed one left behind.

A process id alone is no identity, because ids are used again; a process is (boot id, pid namespace, pid, start time).
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from docker import DockerClient

LAB = "nightshift.lab"
PID = "nightshift.pid"
STARTED = "nightshift.started"
BOOT = "nightshift.boot"
NAMESPACE = "nightshift.pid-namespace"
JOB = "nightshift.job"
CHANNEL_PREFIX = "sandbox-channel-"


@dataclass(frozen=True)
class Owner:
    """This process as the owner of sandboxes of one lab."""

    lab: str
    pid: int
    started: str
    boot: str
    namespace: str

    @classmethod
    def current(cls, lab: str) -> Owner:
        """Return this process as owner; ``lab`` is the lab's id."""
        pid = os.getpid()
        return cls(lab, pid, start_time(pid) or "", boot_id(), pid_namespace())

    def labels(self, job: str) -> dict[str, str]:
        """Labels for a container that runs ``job``."""
        return {
            LAB: self.lab,
            PID: str(self.pid),
            STARTED: self.started,
            BOOT: self.boot,
            NAMESPACE: self.namespace,
            JOB: job,
        }

    def channel_prefix(self) -> str:
        """Start of the names of this process's channel folders, from which ``reap_channels`` knows their owner."""
        return f"{CHANNEL_PREFIX}{self.pid}-{self.started}-"


def boot_id() -> str:
    """Return the kernel's random id of this boot, "" where there is none."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def pid_namespace() -> str:
    """Return the name of this process's pid namespace: a pid means nothing outside of it."""
    with contextlib.suppress(OSError):
        return str(Path("/proc/self/ns/pid").readlink())
    return ""


def start_time(pid: int) -> str | None:
    """Return a process's start in clock ticks since boot (field 22 of /proc/PID/stat), None if it does not run."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The command's name stands in parentheses and may itself hold spaces and parentheses.
    fields = stat.rpartition(")")[2].split()
    if fields[0] in ("Z", "X"):
        return None
    return fields[19]


def owner_is_dead(labels: Mapping[str, str], *, running: bool) -> bool:
    """Say whether the process that these labels name is certainly gone.

    Of another boot or pid namespace nothing can be known (two machines or two dev containers may share an engine), so a
    container from there is given up only if it does not run any more.
    """
    if labels.get(BOOT) != boot_id() or labels.get(NAMESPACE) != pid_namespace():
        return not running
    try:
        pid = int(labels.get(PID, ""))
    except ValueError:
        return False
    return start_time(pid) != labels.get(STARTED)


def reap_containers(client: DockerClient, lab: str) -> list[str]:
    """Remove the lab's containers whose owner is dead; return their names."""
    from docker.errors import APIError, NotFound

    reaped: list[str] = []
    # ignore_removed: another process may be removing its own containers at this very moment.
    for container in client.containers.list(all=True, filters={"label": f"{LAB}={lab}"}, ignore_removed=True):
        if not owner_is_dead(container.labels, running=container.status == "running"):
            continue
        try:
            container.remove(v=True, force=True)
        except NotFound:
            continue
        except APIError as error:
            if error.status_code != 409:  # 409: its removal is under way
                raise
        reaped.append(str(container.name))
    return reaped


def reap_channels(scratch: Path) -> None:
    """Remove the socket folders that dead owners left in ``scratch``."""
    for folder in scratch.glob(f"{CHANNEL_PREFIX}*"):
        pid, _, rest = folder.name.removeprefix(CHANNEL_PREFIX).partition("-")
        if pid.isdigit() and start_time(int(pid)) != rest.partition("-")[0]:
            shutil.rmtree(folder, ignore_errors=True)
