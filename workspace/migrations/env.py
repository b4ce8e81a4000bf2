"""Alembic's entry: runs migrations on the engine that the ledger passes in."""

from __future__ import annotations

from typing import Literal

from alembic import context
from sqlmodel.sql.sqltypes import AutoString

from workspace.tables import METADATA, UtcDateTime

engine = context.config.attributes["engine"]


def render_type(kind: str, value: object, _context: object) -> str | Literal[False]:
    """Write our own column types by their short names into a generated migration."""
    if kind == "type" and isinstance(value, UtcDateTime):
        return "UtcDateTime()"
    if kind == "type" and isinstance(value, AutoString):
        return "sa.String()"
    return False


with engine.connect() as connection:
    context.configure(
        connection=connection,
        target_metadata=METADATA,
        render_as_batch=True,
        compare_type=True,
        render_item=render_type,
    )
    with context.begin_transaction():
        context.run_migrations()
    connection.commit()
