"""The normal forms decide what counts as the same question; pairs below are right by arithmetic or by reading."""

from __future__ import annotations

import pytest

from model.contamination import ContaminationIndex, canonical_expression, expressions_in, normal_text
from model.items import Item, user


def item(key: str, question: str) -> Item:
    return Item(key, (user(question),), "gold", "t")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("23 + 45", "45+23 ="),
        ("23 - 45", "-45 + 23"),
        ("10 - 5 - 2", "10 - 2 - 5"),
        ("2*(3+4)", "(4 + 3) * 2"),
        ("3*x + 4 = 10", "4 + y*3 = 10"),
        ("1.50 + 2", "2 + 1.5"),
        ("007 + 1", "1 + 7"),
    ],
)
def test_the_same_question_has_one_form(one: str, other: str) -> None:
    assert canonical_expression(one) == canonical_expression(other) is not None


@pytest.mark.parametrize(
    ("one", "other"), [("23 - 45", "45 - 23"), ("8 / 4", "4 / 8"), ("2 + 3*4", "(2 + 3)*4"), ("x + 1 = 2", "x + 2 = 1")]
)
def test_other_questions_have_other_forms(one: str, other: str) -> None:
    assert canonical_expression(one) != canonical_expression(other)


@pytest.mark.parametrize("text", ["", "hello", "a.b", "__import__('os')", "1 +", "f(2)", "1" * 500, "(" * 150])
def test_what_is_no_arithmetic_has_none(text: str) -> None:
    assert canonical_expression(text) is None


def test_expressions_are_found_in_sentences() -> None:
    text = "What is 45 plus 23? We know 3 x 4 = 12, 2 × (3 + 4), and 1,024 - 24. Page 7."
    expected = {canonical_expression(form) for form in ("23+45", "3*4", "2*(3+4)", "1024-24")}
    assert expressions_in(text) == expected
    assert expressions_in("No sums here, only 12 monkeys.") == set()


def test_a_swapped_sum_is_caught_wherever_it_hides() -> None:
    form = canonical_expression("23 + 45")
    assert form is not None
    index = ContaminationIndex([("sums", [item(form, "What is 23 + 45?")])])
    hit = index.check("another key", ["Tell me something", "Well, 45 + 23 = 68."], free_text=False)
    assert hit is not None
    assert (hit.eval, hit.kind) == ("sums", "expression")
    by_key = index.check(form, ["…"], free_text=False)
    assert by_key is not None
    assert by_key.kind == "key"
    by_text = index.check("k", ["what is  23+45"], free_text=False)
    assert by_text is not None
    assert by_text.kind == "text"
    assert index.check("k", ["What is 23 - 45?"], free_text=False) is None
    assert index.check("k", ["What is 23 + 46?"], free_text=True) is None


def test_ngrams_catch_a_copied_passage_but_not_the_wording_of_an_eval() -> None:
    wording = "Read the following passage with care and then answer the question below: "
    facts = ["the miller of Arden sold nine grey geese on a cold market day", "a lamp burned", "snow fell", "it rained"]
    index = ContaminationIndex([("reading", [item(f"k{n}", wording + fact) for n, fact in enumerate(facts)])])
    copied = "My story: The miller of Arden sold nine grey geese on a cold day."
    hit = index.check("replay 1", [copied], free_text=True)
    assert hit is not None
    assert hit.kind == "n-gram"
    assert index.check("replay 2", [wording + "who came?"], free_text=True) is None
    assert index.check("replay 1", [copied], free_text=False) is None


def test_a_short_question_is_found_as_a_whole() -> None:
    index = ContaminationIndex([("capitals", [item("capital france", "What is the capital of France?")])])
    assert index.check("replay", ["Please say: what is the capital of France, dear?"], free_text=True) is not None
    assert index.check("replay", ["What is the capital of Spain?"], free_text=True) is None


def test_normal_text() -> None:
    assert normal_text("  The CAT’s  3.5 hats!\n") == "the cat s 3.5 hats"
