"""Figures as people read them."""

from __future__ import annotations

import pytest

from review import words
from review.decisions import from_comparison
from tests.review.factory import comparison


@pytest.mark.parametrize(
    ("p", "text"),
    [(0.31, "0.310"), (0.001, "0.001"), (3.2e-12, "3 × 10⁻¹²"), (9.99e-4, "1 × 10⁻³"), (0.0, "0"), (None, "–")],
)
def test_p_values(p: float | None, text: str) -> None:
    assert words.p_value(p).replace("\u00a0", " ") == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (0.4, "0.4 s"), (59.6, "1 min"), (373, "6 min 13 s"), (3600, "1 h 0 min"), (9_000, "2 h 30 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert words.duration(seconds).replace("\u00a0", " ") == text


@pytest.mark.parametrize(("value", "text"), [(0.32, "+32.0"), (-0.0004, "+0.0"), (-0.197, "−19.7")])
def test_differences_have_a_sign_and_no_minus_zero(value: float, text: str) -> None:
    assert words.points(value) == text


def test_perplexity_is_shown_as_itself_and_its_change_in_percent() -> None:
    claims = {c.eval: c for c in from_comparison(comparison("promote")).claims}
    assert words.value_of(claims["guards"], 0.547) == "54.7%"
    assert words.margin_of(claims["guards"]).replace("\u00a0", " ") == "5 points"
    prose = claims["prose-perplexity"]  # stored as logarithms of 16.5 and 17.1
    assert (words.value_of(prose, prose.parent), words.value_of(prose, prose.successor)) == ("16.5", "17.1")
    assert words.difference_of(prose) == "+3.6%"  # 17.1 / 16.5 = 1.0364


def test_open_guards_are_named() -> None:
    document = comparison("inconclusive")
    document["claims"][1]["outcome"] = "inconclusive"
    sentence = from_comparison(document).sentence
    assert "left open" in sentence
    assert sentence.index("left open") < sentence.index("prose perplexity")
