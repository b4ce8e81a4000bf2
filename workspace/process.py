"""Who a process is: pid, start time and boot, so that a reused pid is never mistaken for a living owner."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def _start_ticks(pid: int) -> str | None:
    """Field 22 of /proc/PID/stat (start time in clock ticks since boot), or None for a dead or zombie process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rsplit(")", 1)[1].split()  # the name in parentheses may hold spaces
    return None if fields[0] in "ZX" else fields[19]


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def identity(pid: int | None = None) -> str:
    """``host/boot/pid/start`` of a living process (ours by default); ProcessLookupError if it is dead."""
    pid = os.getpid() if pid is None else pid
    start = _start_ticks(pid)
    if start is None:
        raise ProcessLookupError(pid)
    return f"{socket.gethostname()}/{_boot()}/{pid}/{start}"


def is_alive(owner: str) -> bool:
    """Whether that very process still runs. Owners on other hosts are taken for alive: we cannot see them."""
    host, boot, pid, start = owner.rsplit("/", 3)
    if host != socket.gethostname():
        return True
    return boot == _boot() and _start_ticks(int(pid)) == start
