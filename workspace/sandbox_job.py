"""What goes into a sandbox and what comes out: plain data, and the faults of a warm sandbox.

SandboxFault            a warm sandbox is no longer to be trusted; it has been thrown away already
├── SandboxGone         its process ended, or broke the protocol
├── SandboxTimeout      no complete answer before the deadline
└── ReplyTooLarge       the answer announced more bytes than were allowed
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Status = Literal["done", "failed", "timed_out", "out_of_memory", "output_flood", "killed"]


@dataclass(frozen=True)
class SandboxLimits:
    """Bounds of one sandbox. Units are in the names; MB and KB are 1024-based."""

    memory_mb: int = 2048
    cpus: float = 2
    pids: int = 128
    timeout_s: float = 600
    """Wall clock from the start of the container; for a warm sandbox the longest wait for it to become ready."""
    tmpfs_mb: int = 256
    """Size of /tmp; what is written there counts against ``memory_mb``."""
    file_mb: int = 1024
    """Largest single file (RLIMIT_FSIZE)."""
    out_mb: int = 8192
    """Everything under /out together; looked at from outside about once a second."""
    output_kb: int = 1024
    """Standard output and standard error together; more of it ends the job."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value <= 0:
                raise ValueError(f"SandboxLimits.{name} must be positive, not {value!r}")


@dataclass(frozen=True)
class SandboxJob:
    """One command in one container.

    ``argv[0] == "python"`` is the interpreter with the packages and the named rooms on its path. ``inputs`` maps paths
    in the container (under /in) to host paths, all read-only. ``output`` is a host folder mounted at /out, with /tmp
    the only writable place; afterwards only plain files and folders are left in it, and they are ours. The environment
    is exactly ``env`` plus the few settled variables of ``sandbox_container``. ``rooms`` are top-level packages of ours
    that the command may import.
    """

    argv: Sequence[str]
    inputs: Mapping[str, Path] = field(default_factory=dict)
    output: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    limits: SandboxLimits = field(default_factory=SandboxLimits)
    name: str = "job"
    rooms: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """How a job ended.

    ``stdout`` and ``stderr`` are tails. ``exit_code`` is None when the container never started. ``peak_memory_bytes``
    is sampled from outside a few times a second (page cache included), None where the cgroup cannot be read.
    """

    status: Status
    exit_code: int | None
    stdout: str
    stderr: str
    wall_s: float
    peak_memory_bytes: int | None


class SandboxFault(RuntimeError):
    """A warm sandbox failed and was thrown away; ``log`` is the tail of what it printed."""

    def __init__(self, message: str, log: str = "") -> None:
        self.log = log
        super().__init__(f"{message}\n{log}" if log else message)


class SandboxGone(SandboxFault):
    """The sandbox's process ended or spoke another protocol."""


class SandboxTimeout(SandboxFault):
    """No complete answer before the deadline."""


class ReplyTooLarge(SandboxFault):
    """The answer announced more bytes than the caller allows."""
