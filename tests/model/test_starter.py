"""The starter guards, prose and replay prompts: gold answers, robust scoring, disjointness."""

from __future__ import annotations

from pathlib import Path

import pytest

from model.evals import load_evals, validate_eval
from model.items import Eval
from model.recipe import Recipe, load_recipe
from model.scoring import contains_answer, mentions, normal
from workspace.errors import UserError

STARTER = Path(__file__).resolve().parents[2] / "model" / "starter"
GUARDS = load_evals(STARTER / "evals")


def test_there_are_at_least_four_kinds_of_guard() -> None:
    assert len({guard.KIND for guard in GUARDS.values()}) >= 4


@pytest.mark.parametrize("guard", GUARDS.values(), ids=GUARDS.keys())
def test_a_guard_accepts_its_gold_in_any_dress_and_refuses_others(guard: Eval) -> None:
    validate_eval(guard)
    items = guard.items(11, 100)
    assert len(items) == len({item.key for item in items}) == 100
    assert [item.key for item in items] != [item.key for item in guard.items(12, 100)]
    for item in items:
        assert guard.score(item, item.gold).strict
        assert guard.score(item, f"Well, the answer is: {item.gold}").strict
        for wrong in ("", "42", "I do not know.", "-1234"):
            assert not guard.score(item, wrong).strict


@pytest.mark.parametrize("name", ["capitals", "continents"])
def test_listing_every_answer_is_wrong(name: str) -> None:
    guard = GUARDS[name]
    items = guard.items(3, 90)
    every = ", ".join(sorted({item.gold for item in items}))
    assert not any(guard.score(item, every).strict for item in items)


def test_contains_answer() -> None:
    assert contains_answer("It is Paris.", ["Paris"], alternatives=["Lyon", "Paris"])
    assert not contains_answer("Comparison", ["Paris"])
    assert contains_answer("São Tomé!", ["Sao Tome"])
    assert not contains_answer("Paris, Lyon, Rome", ["Paris"], alternatives=["Lyon", "Rome"])
    assert contains_answer("Not Rome but Paris", ["Paris"], alternatives=["Rome"], max_others=0, question="Is it Rome?")
    assert mentions("a b  c", "B c")
    assert normal("  Éa-b. ") == "ea b"


def test_replay_prompts_are_many_distinct_and_no_guards() -> None:
    prompts = (STARTER / "replay_prompts.txt").read_text().splitlines()
    assert len(prompts) == len({normal(prompt) for prompt in prompts}) >= 200
    asked = {normal(item.messages[-1].text) for guard in GUARDS.values() for item in guard.items(1, 150)}
    assert not asked & {normal(prompt) for prompt in prompts}
    assert not any(
        word in normal(prompt) for prompt in prompts for word in ("capital", "continent", "opposite", "repeat")
    )


def test_prose_of_the_guard_is_not_the_prose_that_anchors() -> None:
    guard = " ".join(normal(path.read_text()) for path in sorted((STARTER / "prose").glob("*.txt"))).split()
    anchor = normal((STARTER / "anchor_prose.txt").read_text()).split()
    assert len(guard) > 1000
    windows = {tuple(guard[place : place + 6]) for place in range(len(guard) - 5)}
    assert not any(tuple(anchor[place : place + 6]) in windows for place in range(len(anchor) - 5))


def test_the_starter_recipes_are_valid() -> None:
    assert load_recipe(STARTER / "recipes" / "posttrain.toml").method == "lora"
    assert load_recipe(STARTER / "recipes" / "smoke.toml").steps <= 4


@pytest.mark.parametrize(
    ("values", "field"),
    [({"stepz": 3}, "stepz"), ({"steps": "3"}, "steps"), ({"steps": 0}, "steps"), ({"merge_scale": 2.0}, "merge_scale"),
     ({"method": "rl"}, "method"), ({"steps": True}, "steps")],
)  # fmt: skip
def test_wrong_recipes_are_refused_by_name(values: dict[str, object], field: str) -> None:
    with pytest.raises(UserError) as caught:
        Recipe.from_dict(values)
    assert caught.value.field == field


def test_wrong_recipe_files_are_refused(tmp_path: Path) -> None:
    for text in ("not toml [", "[posttrain]\nstepz = 3\n", "[other]\nx = 1\n", "[data]\n"):
        (tmp_path / "r.toml").write_text(text)
        with pytest.raises(UserError):
            load_recipe(tmp_path / "r.toml")
    with pytest.raises(UserError, match="no such recipe"):
        load_recipe(tmp_path / "none.toml")
