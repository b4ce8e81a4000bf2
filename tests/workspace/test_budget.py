"""Budgets: concurrent callers never pass a cap, settling is idempotent, dead owners' claims come back."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from workspace.budget import Budget, BudgetExceeded
from workspace.ledger import Ledger

SCOPE = "night:1"
DYING = """
    import sys
    from workspace.budget import Budget
    from workspace.ledger import Ledger
    Budget(Ledger(sys.argv[1])).reserve(sys.argv[2], "tokens", 7)
"""


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    found = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    found.upgrade()
    yield found
    found.dispose()


def test_64_callers_against_a_cap_spend_at_most_the_cap(ledger: Ledger) -> None:
    budget = Budget(ledger)
    budget.set_cap(SCOPE, "usd", 1.0)

    def call(_number: int) -> bool:
        try:
            claim = budget.reserve(SCOPE, "usd", 0.05)
        except BudgetExceeded:
            return False
        budget.settle(claim, 0.05)
        return True

    with ThreadPoolExecutor(64) as pool:
        granted = sum(pool.map(call, range(64)))
    line = budget.lines(SCOPE)["usd"]
    assert granted == 20
    assert line.spent == pytest.approx(1.0)
    assert line.reserved == pytest.approx(0.0, abs=1e-9)


def test_settling_twice_changes_nothing(ledger: Ledger) -> None:
    budget = Budget(ledger)
    claim = budget.reserve(SCOPE, "tokens", 100)
    budget.settle(claim, 40)
    budget.settle(claim, 99)
    assert budget.lines(SCOPE)["tokens"].spent == 40
    assert budget.lines(SCOPE)["tokens"].reserved == 0


def test_a_dead_owner_gives_back(ledger: Ledger) -> None:
    subprocess.run([sys.executable, "-c", textwrap.dedent(DYING), ledger.url, SCOPE], check=True)
    budget = Budget(ledger)
    budget.reserve(SCOPE, "tokens", 5)
    assert budget.lines(SCOPE)["tokens"].reserved == 12
    assert budget.release_dead() == 1
    assert budget.lines(SCOPE)["tokens"].reserved == 5


def test_the_message_says_what_is_left(ledger: Ledger) -> None:
    budget = Budget(ledger)
    budget.set_cap(SCOPE, "tokens", 10)
    budget.spend(SCOPE, "tokens", 4)
    with pytest.raises(BudgetExceeded, match=r"8 tokens asked, 6 of 10 left"):
        budget.reserve(SCOPE, "tokens", 8)
