"""The default sandbox image, which needs no registry, and what of the host is mounted into it.

The image is a tar of empty folders and two small files; its tag carries the hash of that tar. The host's system
libraries, interpreter and packages are mounted read-only: the mount points lie under /opt because the sandbox's
unprivileged user must be able to walk to them, wherever on the host (/root, a home of mode 0700) they are.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import sys
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from workspace.errors import SurroundingsError
from workspace.sandbox_settings import SandboxSettings, split_mount

if TYPE_CHECKING:
    from docker import DockerClient

REPOSITORY = "nightshift-sandbox"
FOLDERS = ("channel", "dev", "etc", "in", "opt", "out", "proc", "sbin", "sys", "tmp", "usr")
MERGED = ("bin", "lib", "lib32", "lib64", "libx32")  # links into /usr on most systems, folders on the others
FILES = {
    "etc/passwd": "root:x:0:0::/:/bin/false\nsandbox:x:65534:65534::/tmp:/bin/false\n",
    "etc/group": "root:x:0:\nsandbox:x:65534:\n",
}
PYTHON_PREFIX = "/opt/python"
PACKAGES = "/opt/packages"
ROOMS = "/opt/rooms"


@dataclass(frozen=True)
class Base:
    """The part of a container that is the same for every job: image, read-only mounts, interpreter and its paths."""

    image: str
    python: str
    mounts: tuple[tuple[str, str], ...] = ()  # (path on the host, path in the container)
    packages: tuple[str, ...] = ()  # in the container, searched after the rooms
    env: dict[str, str] = field(default_factory=dict)


def build_tar() -> bytes:
    """Return the default image as a tar; the same bytes on every machine of the same layout."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in FOLDERS:
            tar.addfile(_entry(name, tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755))
        for name in MERGED:
            host = Path("/", name)
            if host.is_symlink():
                link = _entry(name, tarfile.SYMTYPE, 0o777)
                link.linkname = str(host.readlink()).lstrip("/")
                tar.addfile(link)
            elif host.is_dir():
                tar.addfile(_entry(name, tarfile.DIRTYPE, 0o755))
        for name, text in FILES.items():
            file = _entry(name, tarfile.REGTYPE, 0o644)
            file.size = len(text.encode())
            tar.addfile(file, io.BytesIO(text.encode()))
    return buffer.getvalue()


def _entry(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type = kind
    entry.mode = mode
    return entry


def ensure_image(client: DockerClient, settings: SandboxSettings) -> str:
    """Return the name of the image to use, made or pulled if need be; SurroundingsError if it cannot be had."""
    from docker.errors import APIError, ImageNotFound

    if settings.image is None:
        tar = build_tar()
        tag = hashlib.sha256(tar).hexdigest()[:16]
        name = f"{REPOSITORY}:{tag}"
        try:
            client.images.get(name)
        except ImageNotFound:
            client.api.import_image_from_data(tar, repository=REPOSITORY, tag=tag)
        return name
    try:
        client.images.get(settings.image)
    except ImageNotFound:
        if not settings.pull:
            raise SurroundingsError(
                f"the sandbox image {settings.image!r} is not on this machine",
                remedy=f"docker pull {settings.image}, or set sandbox.pull = true, or leave sandbox.image out",
            ) from None
        try:
            repository, _, tag = settings.image.rpartition(":")
            named = repository and "/" not in tag and "@" not in settings.image
            client.images.pull(settings.image, tag=None if named or "@" in settings.image else "latest")
        except APIError as error:
            raise SurroundingsError(
                f"the sandbox image {settings.image!r} cannot be pulled: {error.explanation}",
                remedy="check its name and your login, or leave sandbox.image out",
            ) from error
    return settings.image


def make_base(client: DockerClient, settings: SandboxSettings) -> Base:
    """Make sure of the image and settle what is mounted for every job."""
    image = ensure_image(client, settings)
    asked = tuple(split_mount(mount) for mount in settings.ro_mounts)
    for host, _ in asked:
        if not Path(host).exists():
            raise SurroundingsError(f"sandbox.ro_mounts: {host} does not exist", remedy="correct it in nightshift.toml")
    if settings.image is not None:
        return Base(image, "python", asked)
    base = host_base(image)
    return Base(image, base.python, base.mounts + asked, base.packages, base.env)


def host_base(image: str) -> Base:
    """Mounts and paths for the running interpreter: pyenv's, uv's, Debian's, with or without a virtual environment."""
    mounts: list[tuple[str, str]] = [("/usr", "/usr")]
    mounts += [(f"/{n}", f"/{n}") for n in MERGED if Path("/", n).is_dir() and not Path("/", n).is_symlink()]
    # Only the loader's cache and Debian's library alternatives; nothing else of the host's /etc.
    mounts += [(p, p) for p in ("/etc/ld.so.cache", "/etc/alternatives") if Path(p).exists()]
    prefix = Path(sys.base_prefix).resolve()
    executable = _base_executable(prefix)
    env: dict[str, str] = {}
    if prefix == Path("/usr") or prefix.is_relative_to("/usr"):
        python = str(executable)
    else:
        mounts.append((str(prefix), PYTHON_PREFIX))
        python = f"{PYTHON_PREFIX}/{executable.relative_to(prefix)}"
        if any((prefix / "lib").glob("libpython*.so*")):
            # A shared build finds its library by the absolute path it was installed to, which is not there inside.
            env["LD_LIBRARY_PATH"] = f"{PYTHON_PREFIX}/lib"
    packages: list[str] = []
    for path in package_folders(prefix):
        inside = PACKAGES if not packages else f"{PACKAGES}-{len(packages) + 1}"
        mounts.append((str(path), inside))
        packages.append(inside)
    for path in (executable, *(Path(host) for host, _ in mounts)):
        if os.geteuid() == 0 and not path.stat().st_mode & stat.S_IROTH:
            raise SurroundingsError(
                f"{path} is not readable for the sandbox's unprivileged user", remedy=f"chmod -R o+rX {path}"
            )
    return Base(image, python, tuple(mounts), tuple(packages), env)


def _base_executable(prefix: Path) -> Path:
    """The interpreter itself, not a virtual environment's link to it."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for path in (prefix / "bin" / version, prefix / "bin" / "python3", Path(getattr(sys, "_base_executable", ""))):
        real = path.resolve()
        if path.name and real.is_file() and real.is_relative_to(prefix):
            return real
    raise SurroundingsError(
        f"cannot find the interpreter under {prefix}", remedy="set sandbox.image to an image that has python"
    )


def package_folders(prefix: Path) -> list[Path]:
    """Folders of installed packages on ``sys.path`` that neither the interpreter's prefix nor /usr brings along."""
    found: list[Path] = []
    for entry in sys.path:
        path = Path(entry or ".").resolve()
        if path.name not in ("site-packages", "dist-packages") or not path.is_dir() or path in found:
            continue
        if not path.is_relative_to(prefix) and not path.is_relative_to("/usr"):
            found.append(path)
    return found


def room_mounts(rooms: tuple[str, ...]) -> list[tuple[str, str]]:
    """Mounts of our own packages, by name; ValueError for one that does not exist (a mistake of the caller)."""
    mounts = []
    for room in rooms:
        # The package beside this one, not whatever else on the path bears the name.
        folder = Path(__file__).resolve().parent.parent / room
        if not room.isidentifier() or not (folder / "__init__.py").is_file():
            raise ValueError(f"{room!r} is not one of our packages")
        mounts.append((str(folder), f"{ROOMS}/{room}"))
    return mounts
