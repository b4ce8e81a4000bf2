"""The survey and its choice; nothing depends on the name of a family."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest

from model.families import DistinctItems, Family
from model.items import Message
from model.survey import SurveyRow, choose_weakness, chosen, survey


@dataclass(frozen=True)
class Said:
    text: str
    tokens_in: int = 1
    tokens_out: int = 1


class AlwaysSays:
    def __init__(self, text: str) -> None:
        self.text = text

    def reply(
        self,
        conversations: Sequence[Sequence[Message]],
        *,
        max_new_tokens: int | Sequence[int],
        temperature: float = 0.0,
        seed: int = 0,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> list[Said]:
        return [Said(self.text) for _ in conversations]

    def token_nll(self, texts: Sequence[str]) -> list[tuple[float, int]]:
        raise NotImplementedError


def row(family: str, strict: float, *, lenient: float = 0.3, chance: float = 0.0, distinct: int = 50_000) -> SurveyRow:
    found = DistinctItems(distinct, distinct, 1000, "estimated")
    return SurveyRow(family, family, "k", 40, strict, 0.05, lenient, 0.05, chance, distinct, found, 100, 1.0)


ROWS = [
    row("sums", 0.10),
    row("products", 0.50),
    row("easy", 0.95),
    row("boolean", 0.55, chance=0.52),
    row("few", 0.20, distinct=812),
    row("floor", 0.0, lenient=0.01),
    row("nearly", 0.0, lenient=0.2),
]


def test_the_ranking_and_its_reasons() -> None:
    ranking = choose_weakness(ROWS, needed_items=8000)
    assert [choice.row.family for choice in ranking if choice.usable] == ["sums", "products", "nearly"]
    reasons = {choice.row.family: choice.reason for choice in ranking}
    assert reasons["sums"] == "usable"
    assert reasons["few"] == "too few distinct items: 812 < 8000"
    assert reasons["easy"].startswith("at ceiling")
    assert reasons["floor"].startswith("parent at floor: 0 of 40 right")
    assert reasons["boolean"].startswith("parent at chance")
    best = chosen(ranking)
    assert best is not None
    assert best.to_json()["family"] == "sums"


def test_without_the_first_choice_the_next_is_taken() -> None:
    second = chosen(choose_weakness(ROWS, 8000, excluded={"sums"}))
    assert second is not None
    assert second.row.family == "products"
    gone = choose_weakness(ROWS, 8000, excluded={"sums", "products", "nearly"})
    assert chosen(gone) is None
    assert chosen([]) is None


def test_names_do_not_matter() -> None:
    renamed = [replace(each, family=f"z{9 - n}") for n, each in enumerate(ROWS)]
    assert [ROWS[9 - int(choice.row.family[1])].family for choice in choose_weakness(renamed, 8000)][:2] == [
        "sums",
        "products",
    ]


@pytest.mark.parametrize(("low", "high"), [(0.0, 0.05), (0.05, 0.10), (0.9, 0.3), (0.6, 0.3)])
def test_room_and_signal_both_count(low: float, high: float) -> None:
    ranking = choose_weakness([row("less", low, lenient=0.1), row("more", high, lenient=0.1)], 0)
    assert ranking[0].row.family == "more"


def test_a_real_survey_of_two_families() -> None:
    sums = Family.from_settings("sums", {"dataset": "chain_sum", "config": {"min_digits": 1, "max_digits": 1}})
    yes = Family.from_settings("yes", {"dataset": "syllogism"})
    found = survey(AlwaysSays("Yes"), {"sums": sums, "yes": yes}, 30, seed=4, needed_items=100)
    by_name = {each.family: each for each in found.rows}
    golds = [item.gold for item in found.items["yes"]]
    assert by_name["sums"].strict == 0
    assert by_name["yes"].strict == golds.count("Yes") / 30
    assert by_name["yes"].chance > 0.5
    assert by_name["sums"].distinct_items >= 100
    again = survey(AlwaysSays("Yes"), {"sums": sums, "yes": yes}, 30, seed=4, exclude={found.items["sums"][0].key})
    assert found.items["sums"][0].key not in {item.key for item in again.items["sums"]}
