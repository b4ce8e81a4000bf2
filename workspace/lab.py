"""The lab on disk: a git repository of kernels, evals, recipes and settings, with its untracked state beside it."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from workspace.artifacts import Artifacts
from workspace.errors import SurroundingsError, UserError
from workspace.files import write_atomically
from workspace.gitrepo import GitRepo
from workspace.ledger import Ledger
from workspace.settings import FILE, Settings, load_settings

STATE = ".nightshift"


def home() -> Path:
    """Where things outside of labs live: secrets, Prefect's home. ``NIGHTSHIFT_HOME`` moves it."""
    found = os.environ.get("NIGHTSHIFT_HOME")
    return Path(found) if found else Path.home() / ".local" / "share" / "nightshift"


class Lab:
    """An opened lab. Everything that costs time (ledger, repository) is opened at its first use."""

    def __init__(self, root: Path, profile: str = "default") -> None:
        self.root = root.resolve()
        self.profile = profile
        self.settings: Settings = load_settings(self.root / FILE, profile)

    @staticmethod
    def find(start: Path | None = None, profile: str = "default") -> Lab:
        """``start`` itself if given, else ``NIGHTSHIFT_LAB``, else the nearest parent with ``nightshift.toml``."""
        named = start or (Path(os.environ["NIGHTSHIFT_LAB"]) if os.environ.get("NIGHTSHIFT_LAB") else None)
        if named is not None:
            if not (named / FILE).is_file():
                raise UserError(
                    "not a lab", field="--lab" if start else "NIGHTSHIFT_LAB", value=str(named),
                    allowed=f"a folder with {FILE}", remedy=f"nightshift init {named}",
                )  # fmt: skip
            return Lab(named, profile)
        here = Path.cwd()
        for folder in (here, *here.parents):
            if (folder / FILE).is_file():
                return Lab(folder, profile)
        raise UserError(f"no {FILE} here or above", field="--lab", value=str(here), remedy="nightshift init DIR")

    @property
    def state(self) -> Path:
        return self.root / STATE

    @property
    def lab_id(self) -> str:
        return self.settings.lab_id

    @property
    def checkpoints_dir(self) -> Path:
        return self.state / "checkpoints"

    @property
    def ledger_url(self) -> str:
        return self.settings.ledger.url or f"sqlite:///{self.state / 'ledger.db'}"

    @cached_property
    def ledger(self) -> Ledger:
        """The ledger at its newest schema; SurroundingsError when it is missing, behind or newer than this program."""
        self.state.mkdir(exist_ok=True)
        ledger = Ledger(self.ledger_url)
        found, newest = ledger.revision(), ledger.newest_revision()
        if found != newest:
            raise SurroundingsError(
                f"the ledger's schema is {found or 'empty'}, this program needs {newest}",
                remedy=f"nightshift --lab {self.root} db upgrade",
            )
        return ledger

    @cached_property
    def artifacts(self) -> Artifacts:
        return Artifacts(self.state / "artifacts", self.ledger)

    @cached_property
    def git(self) -> GitRepo:
        return GitRepo(self.root)

    def secret(self, purpose: str) -> bytes:
        """32 bytes for one purpose, derived from the lab's secret, which lies outside of the lab's tree."""
        return hashlib.sha256(_secret(self.lab_id) + b"\0" + purpose.encode()).digest()

    @contextmanager
    def scratch(self, name: str) -> Iterator[Path]:
        """A folder of our own that is gone afterwards."""
        folder = self.state / "scratch" / f"{name}-{secrets.token_hex(4)}"
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _secret(lab_id: str) -> bytes:
    path = home() / "secrets" / lab_id
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(path, secrets.token_bytes(32), mode=0o600)
    return path.read_bytes()


def create_lab(root: Path, files: Mapping[str, bytes]) -> Lab:
    """Make a lab at ``root`` from its starter ``files`` (path → content): repository, first commit, ledger.

    Taken up again after an interruption.  UserError if the folder holds something else.
    """
    root = root.resolve()
    if root.exists() and not root.is_dir():
        raise UserError("not a folder", field="DIR", value=str(root))
    marker = root / STATE / "making"
    if root.exists() and any(root.iterdir()) and not marker.exists():
        raise UserError(
            "the folder is not empty", field="DIR", value=str(root), allowed="a new or an empty folder, or a lab"
        )
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.touch()
    repo = GitRepo.init(root)
    for path, data in files.items():
        if not (root / path).exists():  # settings hold the lab's id: an interrupted start keeps the first one
            write_atomically(root / path, data)
    repo.commit_files(sorted(files), "Start the lab\n")
    lab = Lab(root)
    Ledger(lab.ledger_url).upgrade()
    lab.secret("start")
    lab.ledger.log("lab", "made", files=len(files))
    marker.unlink()
    return lab
