"""Families: item identity, distinct counts (known by combinatorics), and what counts as an answer."""

from __future__ import annotations

import tomllib

import pytest
import reasoning_gym

from model.evals import draw_items, validate_eval
from model.families import STARTER_FAMILIES_TOML, Family, answer_in, count_distinct, load_families
from workspace.errors import UserError

SUMS = {"dataset": "chain_sum", "config": {"min_terms": 2, "max_terms": 2, "min_digits": 2, "max_digits": 2}}
STARTER = tomllib.loads(STARTER_FAMILIES_TOML)["survey"]["families"]


def test_an_item_is_reasoning_gyms_own() -> None:
    family = Family.from_settings("sums", SUMS)
    found = family.item(2**63 + 77)
    theirs = reasoning_gym.create_dataset("chain_sum", seed=2**63 + 77, size=1, **SUMS["config"])[0]  # type: ignore[arg-type]
    assert found.messages[0].text == theirs["question"]
    assert found.gold == theirs["answer"]


def test_neighbouring_seeds_share_no_items() -> None:
    """reasoning-gym's own seeds 1 and 2 share 49 of 50."""
    family = Family.from_settings("sums", {**SUMS, "config": {"min_digits": 4, "max_digits": 4}})
    one, two = ({item.key for item in family.items(seed, 50)} for seed in (1, 2))
    assert len(one) == len(two) == 50
    assert not one & two
    assert family.items(1, 50) == family.items(1, 50)


def test_drawing_leaves_out_what_is_excluded_and_ends_when_items_do() -> None:
    digits = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    family = Family.from_settings("digits", {"dataset": "products", "config": digits})
    everything = {item.key for item in draw_items(family, 5, 1000)}
    assert len(everything) == 55  # unordered pairs of 0..9
    some = set(sorted(everything)[:50])
    assert {item.key for item in draw_items(family, 6, 20, exclude=some)} == everything - some


def test_distinct_items_are_counted_or_estimated() -> None:
    digits = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    small = count_distinct(Family.from_settings("digits", {"dataset": "products", "config": digits}))
    assert (small.estimate, small.low, small.method) == (55, 55, "counted")
    # ordered differences 90*90, unordered sums 90*91/2; sums are likelier, so the estimate may fall short of all
    sums = count_distinct(Family.from_settings("sums", SUMS))
    true = 90 * 90 + 90 * 91 // 2
    assert sums.method == "estimated"
    assert 0.85 * true < sums.low < sums.estimate < 1.1 * true
    enough = count_distinct(Family.from_settings("sums", SUMS), needed=1000)
    assert enough.low >= 1000
    assert enough.draws < sums.draws


def test_syllogisms_with_other_nouns_are_the_same() -> None:
    family = Family.from_settings("syllogisms", {"dataset": "syllogism"})
    assert count_distinct(family).estimate < 400
    assert family.answer_kind == "choice"
    assert set(family.choices) == {"Yes", "No"}


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("68", "68"),
        ("68.", "68"),
        ("The answer is 68.", "68"),
        ("23 + 45 = 68", "68"),
        ("The sum of 23 and 45 is 68.", "68"),
        ("The answer to 23 + 45 is: **68**", "68"),
        ("23 + 45 = 68\nSo the final answer is 68.", "68"),
        ("To add 23 and 45 we get 68 apples", "68"),
        ("\\boxed{68}", "68"),
        ("It is 1,068.00", "1068"),
        ("-22", "-22"),
        ("23 - 45 = -22", "-22"),
        ("60, 61, 62, 63, 64, 65, 66, 67, 68", None),
        ("1\n2\n3\n68", None),
        ("a = 1, b = 2, c = 3, d = 68", None),
        ("67 or 68", None),
        ("I cannot say.", None),
        ("", None),
    ],
)
def test_a_number_is_taken_out_of_a_reply(reply: str, answer: str | None) -> None:
    assert answer_in(reply, "number", "What is 23 + 45?") == ([answer] if answer is not None else [])


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("Yes", "Yes"),
        ("yes.", "Yes"),
        ("No, it does not follow.", "No"),
        ("Yes, because no tigers are birds.", "Yes"),
        ("The answer is No", "No"),
        ("Yes or No", None),
        ("Yes, No", None),
        ("Yes/No", None),
        ("Maybe", None),
    ],
)
def test_a_choice_is_taken_out_of_a_reply(reply: str, answer: str | None) -> None:
    assert answer_in(reply, "choice", "", ("Yes", "No")) == ([answer] if answer is not None else [])


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("nus", "nus"),
        ('"nus"', "nus"),
        ("The reverse of sun is nus.", "nus"),
        ('The word "sun" backward is "nus".', "nus"),
        ("one two three", None),
    ],
)
def test_a_word_is_taken_out_of_a_reply(reply: str, answer: str | None) -> None:
    found = answer_in(reply, "word", "Spell this word backward: sun")
    assert found[:1] == ([answer] if answer is not None else [])


def test_text_drops_its_lead_in() -> None:
    assert "a, b, c" in answer_in("The answer is: a, b, c.", "text")
    assert "['1', '2']" in answer_in("Here is the list:\n['1', '2']", "text")


def test_strict_needs_the_answer_and_lenient_a_mention() -> None:
    family = Family.from_settings("sums", SUMS)
    item = family.item(12345)
    assert family.score(item, f"The answer is {item.gold}.").strict
    wrong = family.score(item, f"{item.gold}1")
    assert not wrong.strict
    assert wrong.lenient < 1
    listed = family.score(item, f"It may be 1, 2, 3, 4, 5 and also {item.gold}, and 7")
    assert (listed.strict, listed.lenient) == (False, 1.0)


@pytest.mark.parametrize("name", sorted(STARTER))
def test_a_starter_family_proves_itself(name: str) -> None:
    validate_eval(Family.from_settings(name, STARTER[name]), count=12)


def test_the_starter_settings_have_enough_families() -> None:
    families = load_families(STARTER)
    assert len(families) >= 10
    assert len({family.dataset for family in families.values()}) >= 8


def test_every_starter_family_scores_a_chatty_gold_answer() -> None:
    for family in load_families(STARTER).values():
        for item in family.items(9, 5):
            assert family.score(item, f"The answer is {item.gold}.").strict, (family.name, item.gold)


@pytest.mark.parametrize(
    ("entry", "names"),
    [
        ({"dataset": "no_such"}, "survey.families.x.dataset"),
        ({"dataset": "chain_sum", "config": {"min_terms": 0}}, "survey.families.x.config"),
        ({"dataset": "chain_sum", "config": {"terms": 2}}, "survey.families.x.config"),
        ({"dataset": "chain_sum", "colour": 1}, "survey.families.x.colour"),
        ({}, "survey.families.x.dataset"),
    ],
)
def test_a_wrong_family_is_named(entry: dict[str, object], names: str) -> None:
    with pytest.raises(UserError) as caught:
        Family.from_settings("x", entry)
    assert caught.value.field == names
