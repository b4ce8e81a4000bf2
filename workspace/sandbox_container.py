"""The hardening: everything that is said to the engine when a sandbox is created, in one place.

What is not covered: a fault of the kernel itself (gVisor's ``runsc`` as Docker's default runtime helps against those),
the timing side channels of shared processors, and a disk quota inside /out (its size is watched from outside instead).
"""

from __future__ import annotations

import math
import os
import re
import secrets
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workspace.docker_engine import EngineInfo
from workspace.sandbox_image import ROOMS, Base, room_mounts
from workspace.sandbox_job import SandboxJob
from workspace.sandbox_owner import Owner
from workspace.sandbox_settings import SandboxSettings

if TYPE_CHECKING:
    from docker.types import Mount

NOBODY = 65534
MB = 1024 * 1024
OPEN_FILES = 1024
LOG_FILE_MB = 4
SCRATCH = "/tmp"
SECCOMP_PROFILE = Path(__file__).with_name("seccomp.json")


def sandbox_user(engine: EngineInfo) -> tuple[int, int]:
    """Return the (uid, gid) of the sandbox.

    Root must not stay root: it becomes nobody. Anyone else stays who they are, so that what is written to /out is
    theirs. In a rootless engine that same person is called 0 inside, without any capability.
    """
    if engine.rootless:
        return 0, 0
    if os.geteuid() == 0:
        return NOBODY, NOBODY
    return os.geteuid(), os.getegid()


def container_options(
    job: SandboxJob,
    base: Base,
    settings: SandboxSettings,
    owner: Owner,
    engine: EngineInfo,
    *,
    channel: Path | None = None,
) -> dict[str, Any]:
    """Return the keyword arguments of ``client.containers.create``.

    ``channel`` is the folder with the socket of a warm sandbox; such a sandbox lives as long as it is used, so it gets
    no limit of processor seconds.
    """
    limits = job.limits
    memory = min(limits.memory_mb, settings.memory_mb) * MB
    cpus = min(limits.cpus, settings.cpus, float(engine.cpus))
    uid, gid = sandbox_user(engine)
    # No entrypoint of the image's own stands between us and the command.
    argv = [base.python if job.argv[0] == "python" else job.argv[0], *job.argv[1:]]
    return {
        "image": base.image,
        "entrypoint": argv[:1],
        "command": argv[1:],
        "name": container_name(job.name, owner),
        "labels": owner.labels(job.name),
        "environment": _environment(job, base, cpus),
        "use_config_proxy": False,  # the client's settings would put the host's proxies, and their passwords, in
        "working_dir": SCRATCH,
        "hostname": "sandbox",
        "user": f"{uid}:{gid}",
        "network_mode": "none",
        "cap_drop": ["ALL"],
        "security_opt": _security_options(settings, engine),
        "privileged": False,
        "read_only": True,
        "init": True,
        "ipc_mode": "private",
        "shm_size": 64 * MB,
        "mounts": _mounts(job, base, channel),
        "tmpfs": {SCRATCH: f"rw,exec,nosuid,nodev,size={limits.tmpfs_mb}m,mode=1777"},
        "mem_limit": memory,
        "memswap_limit": memory,
        "nano_cpus": int(cpus * 1e9),
        "pids_limit": min(limits.pids, settings.pids),
        "oom_score_adj": 500,  # if the whole machine runs short, this goes first
        "ulimits": _ulimits(job, cpus, warm=channel is not None),
        "log_config": _log_config(),
        "detach": True,
        "stdin_open": False,
        "tty": False,
    }


def container_name(job: str, owner: Owner) -> str:
    """A readable name that is unique."""
    plain = re.sub(r"[^a-zA-Z0-9_.-]+", "-", job).strip("-.") or "job"
    return f"nightshift-{plain[:40]}-{owner.pid}-{secrets.token_hex(4)}"


@cache
def seccomp_profile() -> str:
    """Return our allow-list of system calls, as made by ``scripts/seccomp_profile.py``."""
    return SECCOMP_PROFILE.read_text()


def _environment(job: SandboxJob, base: Base, cpus: float) -> dict[str, str]:
    threads = str(max(1, int(cpus)))  # a container sees all processors of the host, whatever its share
    settled = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": SCRATCH,
        "TMPDIR": SCRATCH,
        "USER": "sandbox",
        "LOGNAME": "sandbox",
        "LANG": "C.UTF-8",
        "PYTHONPATH": ":".join([ROOMS, *base.packages]),
        "PYTHONSAFEPATH": "1",
        "PYTHONNOUSERSITE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "NUMEXPR_MAX_THREADS": threads,
    }
    return settled | base.env | dict(job.env)


def _security_options(settings: SandboxSettings, engine: EngineInfo) -> list[str]:
    options = ["no-new-privileges"]
    if settings.seccomp:
        options.append(f"seccomp={seccomp_profile()}")
    if engine.selinux:
        options.append("label=disable")  # else it forbids reading our mounts; relabelling the host's files is worse
    return options


def _mounts(job: SandboxJob, base: Base, channel: Path | None) -> list[Mount]:
    from docker.types import Mount

    def bind(host: str, inside: str, *, read_only: bool = True) -> Mount:
        return Mount(target=inside, source=host, type="bind", read_only=read_only, propagation="rprivate")

    mounts = [bind(host, inside) for host, inside in base.mounts]
    mounts += [bind(host, inside) for host, inside in room_mounts(job.rooms)]
    for inside, path in job.inputs.items():
        host = path.resolve()
        if not inside.startswith("/in/") and inside != "/in":
            raise ValueError(f"an input must lie under /in, not at {inside!r}")
        if not host.exists():
            raise FileNotFoundError(f"input {inside}: {host} does not exist")
        mounts.append(bind(str(host), inside))
    if job.output is not None:
        mounts.append(bind(str(job.output.resolve()), "/out", read_only=False))
    if channel is not None:
        mounts.append(bind(str(channel), "/channel"))
    return mounts


def _ulimits(job: SandboxJob, cpus: float, *, warm: bool) -> list[Any]:
    from docker.types import Ulimit

    file_bytes = job.limits.file_mb * MB
    limits = {"fsize": file_bytes, "nofile": OPEN_FILES, "core": 0}
    if not warm:
        # Only for the case that this process is killed: nobody is left then to enforce the deadline.
        limits["cpu"] = math.ceil(job.limits.timeout_s * max(1.0, cpus)) + 60
    return [Ulimit(name=name, soft=value, hard=value) for name, value in limits.items()]


def _log_config() -> Any:
    from docker.types import LogConfig

    return LogConfig(type="json-file", config={"max-size": f"{LOG_FILE_MB}m", "max-file": "1"})
