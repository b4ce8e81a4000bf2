"""The content-addressed store: ``artifacts/ab/abcdef…`` named by sha256; the file is on disk before its row."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

from sqlmodel import Session

from workspace.errors import SurroundingsError
from workspace.files import fsync_folder, sha256_bytes, sha256_file, write_atomically
from workspace.ledger import Ledger
from workspace.tables import Artifact


class Artifacts:
    """Put content in, get its sha256; give a sha256, get the content, checked."""

    def __init__(self, root: Path, ledger: Ledger) -> None:
        self.root = root
        self._ledger = ledger

    def path(self, sha256: str) -> Path:
        """Where that content lies (whether it does or not)."""
        return self.root / sha256[:2] / sha256

    def put_bytes(self, data: bytes, kind: str, session: Session | None = None) -> str:
        """Store ``data``; ``kind`` says what it is ("kernel-source", …). With ``session`` the row joins that write."""
        sha256 = sha256_bytes(data)
        path = self.path(sha256)
        if not path.exists():
            write_atomically(path, data)
        self._row(sha256, len(data), kind, session)
        return sha256

    def put_json(self, value: Any, kind: str, session: Session | None = None) -> str:
        """Store a JSON document in its canonical form (sorted keys, no spaces)."""
        return self.put_bytes(canonical_json(value), kind, session)

    def put_file(self, source: Path, kind: str) -> str:
        """Copy a file in (reflinked or streamed, so that large files do not pass through memory)."""
        sha256 = sha256_file(source)
        path = self.path(sha256)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            aside = path.with_name(f".{sha256}.{secrets.token_hex(4)}")
            try:
                shutil.copyfile(source, aside)
                with aside.open("rb+") as file:
                    os.fsync(file.fileno())
                aside.replace(path)
            except BaseException:
                aside.unlink(missing_ok=True)
                raise
            fsync_folder(path.parent)
        self._row(sha256, path.stat().st_size, kind, None)
        return sha256

    def get_bytes(self, sha256: str) -> bytes:
        """The content; SurroundingsError if it is missing or no longer has that hash."""
        try:
            data = self.path(sha256).read_bytes()
        except FileNotFoundError:
            raise SurroundingsError(
                f"artifact {sha256[:12]} is missing", remedy="restore .nightshift/artifacts from a backup; see db check"
            ) from None
        if sha256_bytes(data) != sha256:
            raise SurroundingsError(f"artifact {sha256[:12]} has changed on disk", remedy="restore it from a backup")
        return data

    def get_json(self, sha256: str) -> Any:
        return json.loads(self.get_bytes(sha256))

    def _row(self, sha256: str, size_bytes: int, kind: str, session: Session | None) -> None:
        row = Artifact(sha256=sha256, size_bytes=size_bytes, kind=kind)
        if session is not None:
            if session.get(Artifact, sha256) is None:
                session.add(row)
                session.flush()
            return
        with self._ledger.read() as reader:
            if reader.get(Artifact, sha256) is not None:
                return
        with self._ledger.write() as writer:
            if writer.get(Artifact, sha256) is None:
                writer.add(row)


def canonical_json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
