"""The ledger: one engine, one writer path.

SQLite runs in WAL mode with ``synchronous=FULL``; writers take the lock at the start (``BEGIN IMMEDIATE``), readers
stay deferred, so that a read never waits for a write.  Any other SQLAlchemy URL (PostgreSQL) works with the same code.
Schema changes are Alembic migrations in ``workspace/migrations``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event, inspect, text
from sqlalchemy.exc import OperationalError
from sqlmodel import Session

from workspace import tables
from workspace.errors import SurroundingsError

MIGRATIONS = Path(__file__).parent / "migrations"
BUSY_TIMEOUT_S = 30.0


class Ledger:
    """Sessions over the lab's database. Objects stay usable after their session (``expire_on_commit=False``).

    ``busy_timeout_s`` is how long a writer waits for another one before the ledger is called locked.
    """

    def __init__(self, url: str, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        self.url = url
        self._sqlite = url.startswith("sqlite")
        self.engine: Engine = create_engine(url, pool_pre_ping=not self._sqlite)
        if self._sqlite:
            _prepare_sqlite(self.engine, busy_timeout_s)
        self._writer = self.engine.execution_options(nightshift_writer=True)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session for reading; whatever it changes is rolled back."""
        with _named_lock_error(), Session(self.engine, expire_on_commit=False) as session:
            try:
                yield session
            finally:
                session.expunge_all()  # a rollback would expire what was read
                session.rollback()

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A session that holds the write lock from its start and commits at its end, or rolls everything back."""
        with _named_lock_error(), Session(self._writer, expire_on_commit=False) as session:
            session.connection()  # takes the lock now, not at the first statement
            yield session
            session.commit()

    def log(self, kind: str, message: str, night_id: int | None = None, **data: Any) -> None:
        """Append one event."""
        with self.write() as session:
            session.add(tables.Event(kind=kind, message=message, night_id=night_id, data=data))

    def upgrade(self) -> None:
        """Bring the schema to the newest migration; does nothing when it is there."""
        from alembic import command

        if self.revision() != self.newest_revision():
            command.upgrade(self.alembic_config(), "head")

    def alembic_config(self) -> Any:
        from alembic.config import Config

        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS))
        config.attributes["engine"] = self.engine
        return config

    def revision(self) -> str | None:
        """The migration that the database stands at, or None for an empty one."""
        with _named_lock_error(), self.engine.connect() as connection:
            if not inspect(connection).has_table("alembic_version"):
                return None
            found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
            return str(found) if found else None

    def newest_revision(self) -> str:
        from alembic.script import ScriptDirectory

        return str(ScriptDirectory.from_config(self.alembic_config()).get_current_head())

    def dispose(self) -> None:
        """Close all connections; call it in a child after a fork, too."""
        self.engine.dispose()


def _prepare_sqlite(engine: Engine, busy_timeout_s: float) -> None:
    @event.listens_for(engine, "connect")
    def on_connect(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # the driver must not begin on its own
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout={int(busy_timeout_s * 1000)}")
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.close()

    @event.listens_for(engine, "begin")
    def on_begin(connection: Any) -> None:
        writer = connection.get_execution_options().get("nightshift_writer", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writer else "BEGIN")


@contextmanager
def _named_lock_error() -> Iterator[None]:
    try:
        yield
    except OperationalError as error:
        reason = str(error.orig).lower()
        if "locked" in reason or "busy" in reason:
            raise SurroundingsError(
                "the ledger is locked by another process",
                remedy="wait for the other nightshift command, or see who holds it: fuser -v .nightshift/ledger.db",
            ) from error
        if "full" in reason or "disk i/o" in reason:
            raise SurroundingsError(
                f"the ledger cannot be written: {error.orig}", remedy="free some disk space, then start again"
            ) from error
        if "unable to open" in reason or "readonly" in reason or "could not connect" in reason or "refused" in reason:
            raise SurroundingsError(
                f"the ledger cannot be opened: {error.orig}", remedy="check [ledger] url and the folder's permissions"
            ) from error
        raise
