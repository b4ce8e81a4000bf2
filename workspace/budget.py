"""Budgets: reserved before they are spent, settled after, never overspent by concurrent callers.

A line is (scope, resource), e.g. ("night:3", "tokens").  A reservation raises ``BudgetExceeded`` when cap, spent and
what others have reserved leave too little room; a dead owner's reservations are given back by ``release_dead``.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlmodel import Session, col, select

from workspace import process
from workspace.errors import NightshiftError
from workspace.ledger import Ledger
from workspace.tables import BudgetLine, Reservation

RESOURCES = ("tokens", "usd", "wall_s", "accelerator_s")


class BudgetExceeded(NightshiftError):
    """A cap would be passed: a state of the night, not a crash."""


@dataclass(frozen=True)
class Line:
    """What a budget line stands at."""

    scope: str
    resource: str
    cap: float | None
    reserved: float
    spent: float


class Budget:
    """Reservations against the ledger's budget lines."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def set_cap(self, scope: str, resource: str, cap: float | None) -> None:
        """Open a line, or change its cap; ``None`` counts without a limit."""
        if resource not in RESOURCES:
            raise ValueError(f"resource is one of {', '.join(RESOURCES)}, not {resource!r}")
        with self._ledger.write() as session:
            line = _line(session, scope, resource)
            line.cap = cap
            session.add(line)

    def reserve(self, scope: str, resource: str, amount: float) -> int:
        """Claim ``amount`` and return the reservation's id; BudgetExceeded if the line has not that much left."""
        with self._ledger.write() as session:
            line = _line(session, scope, resource)
            if line.cap is not None and line.spent + line.reserved + amount > line.cap * (1 + 1e-12):
                left = line.cap - line.spent - line.reserved
                raise BudgetExceeded(
                    f"budget of {scope}: {amount:g} {resource} asked, {max(left, 0):g} of {line.cap:g} left",
                    remedy="raise the cap in nightshift.toml [budget], or wait for the next night",
                )
            line.reserved += amount
            claim = Reservation(line_id=line.id or 0, amount=amount, owner=process.identity())
            session.add_all([line, claim])
            session.flush()
            assert claim.id is not None
            return claim.id

    def settle(self, reservation_id: int, used: float) -> None:
        """Close a reservation with what was really used. Settling twice changes nothing."""
        with self._ledger.write() as session:
            _settle(session, session.get_one(Reservation, reservation_id), used)

    def spend(self, scope: str, resource: str, amount: float) -> None:
        """Count what was spent without a reservation (wall clock, which nobody can refuse)."""
        with self._ledger.write() as session:
            line = _line(session, scope, resource)
            line.spent += amount
            session.add(line)

    def lines(self, scope: str) -> dict[str, Line]:
        """All lines of a scope by resource."""
        with self._ledger.read() as session:
            rows = session.exec(select(BudgetLine).where(BudgetLine.scope == scope)).all()
            return {row.resource: Line(row.scope, row.resource, row.cap, row.reserved, row.spent) for row in rows}

    def release_dead(self) -> int:
        """Give back what dead owners still hold; returns how many claims that were."""
        with self._ledger.write() as session:
            claims = session.exec(select(Reservation).where(col(Reservation.settled).is_(None))).all()
            dead = [claim for claim in claims if not process.is_alive(claim.owner)]
            for claim in dead:
                _settle(session, claim, 0.0)
            return len(dead)


def _settle(session: Session, claim: Reservation, used: float) -> None:
    if claim.settled is not None:
        return
    line = session.exec(select(BudgetLine).where(BudgetLine.id == claim.line_id).with_for_update()).one()
    line.reserved = max(line.reserved - claim.amount, 0.0)
    line.spent += used
    claim.settled = used
    session.add_all([line, claim])


def _line(session: Session, scope: str, resource: str) -> BudgetLine:
    statement = select(BudgetLine).where(BudgetLine.scope == scope, BudgetLine.resource == resource).with_for_update()
    line = session.exec(statement).first()
    if line is None:
        line = BudgetLine(scope=scope, resource=resource)
        session.add(line)
        session.flush()
    return line
