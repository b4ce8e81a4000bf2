"""Who owns a sandbox: labels that let a later process find and remove what a killed one left behind."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from workspace.process import identity, is_alive

if TYPE_CHECKING:
    from docker import DockerClient

LAB = "nightshift.lab"
OWNER = "nightshift.owner"
JOB = "nightshift.job"
CHANNEL_PREFIX = "sandbox-channel-"


@dataclass(frozen=True)
class Owner:
    """A process that owns sandboxes of one lab; ``process`` is its ``workspace.process.identity``."""

    lab: str
    process: str

    @classmethod
    def current(cls, lab: str) -> Owner:
        """Return this process as owner; ``lab`` is the lab's id."""
        return cls(lab, identity())

    @property
    def pid(self) -> int:
        """The owner's process id."""
        return int(self.process.rsplit("/", 2)[1])

    def labels(self, job: str) -> dict[str, str]:
        """Labels for a container that runs ``job``."""
        return {LAB: self.lab, OWNER: self.process, JOB: job}

    def channel_prefix(self) -> str:
        """Start of the names of this process's channel folders, from which ``reap_channels`` knows their owner."""
        pid, start = self.process.rsplit("/", 2)[1:]
        return f"{CHANNEL_PREFIX}{pid}-{start}-"


def owner_is_dead(labels: Mapping[str, str]) -> bool:
    """Say whether the process that these labels name is certainly gone; a label that says nothing proves nothing."""
    try:
        return not is_alive(labels[OWNER])
    except (KeyError, ValueError):
        return False


def reap_containers(client: DockerClient, lab: str) -> list[str]:
    """Remove the lab's containers whose owner is dead; return their names."""
    from docker.errors import APIError, NotFound

    reaped: list[str] = []
    # ignore_removed: another process may be removing its own containers at this very moment.
    for container in client.containers.list(all=True, filters={"label": f"{LAB}={lab}"}, ignore_removed=True):
        if not owner_is_dead(container.labels):
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
    here = identity().rsplit("/", 2)[0]
    for folder in scratch.glob(f"{CHANNEL_PREFIX}*"):
        pid, _, rest = folder.name.removeprefix(CHANNEL_PREFIX).partition("-")
        if pid.isdigit() and not is_alive(f"{here}/{pid}/{rest.partition('-')[0]}"):
            shutil.rmtree(folder, ignore_errors=True)
