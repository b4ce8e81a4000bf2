"""The ``[sandbox]`` table of a lab's settings."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

TAKEN = ("", "/in", "/out", "/tmp", "/proc", "/sys", "/dev", "/channel")


class SandboxSettings(BaseModel):
    """How model-written code is contained. Unknown keys are refused.

    Without ``image`` a tiny image of empty folders is built here, without a registry, and the host's interpreter, its
    packages and its system libraries are mounted into it read-only. With ``image`` nothing of the host is mounted but
    ``ro_mounts``; the image must then bring ``python`` and the packages (``scripts/sandbox.Dockerfile`` builds one).

    ``memory_mb``, ``cpus`` and ``pids`` are ceilings: a job that asks for more gets this much.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    image: str | None = Field(default=None, min_length=1, description="image to run in; none = built from the host")
    pull: bool = Field(default=False, description="pull `image` when it is not there; nothing else is ever pulled")
    ro_mounts: list[str] = Field(default_factory=list, description="more read-only mounts: HOST or HOST:CONTAINER")
    memory_mb: int = Field(default=8192, ge=64, description="most memory of a sandbox, swap included")
    cpus: float = Field(default=64.0, gt=0, description="most processors of a sandbox")
    pids: int = Field(default=512, ge=8, description="most processes and threads of a sandbox")
    seccomp: bool = Field(default=True, description="our system-call profile; false = the engine's default one")
    engine_timeout_s: float = Field(default=60.0, gt=0, description="longest wait for one answer of the engine")

    @field_validator("ro_mounts")
    @classmethod
    def _mounts_are_absolute(cls, mounts: list[str]) -> list[str]:
        for mount in mounts:
            split_mount(mount)
        return mounts

    @model_validator(mode="after")
    def _pull_needs_an_image(self) -> SandboxSettings:
        if self.pull and self.image is None:
            raise ValueError('pull = true needs image = "NAME": the built-in image comes from no registry')
        return self


def split_mount(mount: str) -> tuple[str, str]:
    """Return (path on the host, path in the container) of one ``ro_mounts`` entry; ValueError if it is not absolute."""
    host, separator, inside = mount.partition(":")
    inside = inside if separator else host
    for path in (host, inside):
        if not path.startswith("/") or ".." in path.split("/"):
            raise ValueError(f"{mount!r} is not HOST or HOST:CONTAINER with absolute paths")
    if inside.rstrip("/") in TAKEN:
        raise ValueError(f"{mount!r} would cover {inside}, which the sandbox needs for itself")
    return host, inside
