"""The data set of a night, made by a model that adds right when it feels like it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from model.contamination import ContaminationIndex
from model.dataset import COLUMNS, DataRecipe, DatasetResult, build_dataset, check_dataset, load_dataset, read_rows
from model.families import Family
from model.items import Eval, Item, Message, Score, user
from workspace.errors import UserError
from workspace.files import sha256_file

RECIPE = DataRecipe(problems=60, samples=2, replay_prompts=20, neighbour_problems=12, replay_tokens=16)
PROMPTS = [
    f"Write a line about the {noun} of a quiet town number {n}."
    for n, noun in enumerate(["river"] * 15 + ["hill"] * 15)
]
DIGITS2 = {"min_terms": 2, "max_terms": 2, "min_digits": 2, "max_digits": 2}


@dataclass(frozen=True)
class Said:
    text: str
    tokens_in: int
    tokens_out: int


class Adder:
    """Right with probability ``skill`` when sampled; chats otherwise. Depends only on (seed, row)."""

    def __init__(self, skill: float = 0.4) -> None:
        self.skill = skill
        self.asked: list[str] = []

    def reply(
        self,
        conversations: Sequence[Sequence[Message]],
        *,
        max_new_tokens: int | Sequence[int],
        temperature: float = 0.0,
        seed: int = 0,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> list[Said]:
        budgets = [max_new_tokens] * len(conversations) if isinstance(max_new_tokens, int) else list(max_new_tokens)
        replies = []
        for row, (conversation, budget) in enumerate(zip(conversations, budgets, strict=True)):
            text = conversation[-1].text
            self.asked.append(text)
            draw = np.random.default_rng([seed, row]).random()
            found = re.search(r"(-?\d+) ([-+]) (\d+)", text)
            if found is None:
                replies.append(Said(f"A quiet line, number {draw:.4f}.", 9, budget if draw > 0.5 else 7))
                continue
            left, right = int(found[1]), int(found[3])
            answer = left + right if found[2] == "+" else left - right
            replies.append(Said(f"The answer is {answer if draw < self.skill else answer + 1}.", 9, 5))
        if on_progress is not None:
            on_progress(len(replies), len(replies))
        return replies

    def token_nll(self, texts: Sequence[str]) -> list[tuple[float, int]]:
        raise NotImplementedError


@pytest.fixture
def target() -> Family:
    return Family.from_settings("sums", {"dataset": "chain_sum", "config": DIGITS2})


def build(target: Eval, out: Path, *, skill: float = 0.4, seed: int = 11, **more: object) -> DatasetResult:
    neighbour = Family.from_settings("long sums", {"dataset": "chain_sum", "config": {**DIGITS2, "max_digits": 4}})
    arguments: dict[str, object] = {
        "eval_items": [("sums", target.items(99, 300))],
        "replay_prompts": PROMPTS,
        "neighbours": {"sums": target, "long sums": neighbour},
        "parent_sha256": "ab" * 32,
        **more,
    }
    recipe = arguments.pop("recipe", RECIPE)
    return build_dataset(Adder(skill), target, recipe, out, seed=seed, **arguments)  # type: ignore[arg-type]


def test_a_data_set_holds_what_it_says(target: Family, tmp_path: Path) -> None:
    stages: list[str] = []
    found = build(target, tmp_path / "data", on_progress=lambda stage, done, total: stages.append(stage))
    rows = read_rows(found.directory / "data.parquet")
    assert pq.read_schema(found.directory / "data.parquet").names == list(COLUMNS)
    assert len(rows) == found.rows == sum(found.counts.values())
    assert found.counts["self"] + found.counts["gold"] == RECIPE.problems
    assert 0.5 < found.self_share_of_target < 0.8  # 1 - 0.6^2 of them solved
    assert stages == ["own answers", "replay", "neighbours"]
    assert len({row.key for row in rows}) == len(rows)
    for row in rows:
        question = re.search(r"(-?\d+) ([-+]) (\d+)", row.prompt[-1].text)
        if row.source in ("self", "gold"):
            assert question is not None
            expected = int(question[1]) + int(question[2] + question[3])
            assert re.findall(r"-?\d+", row.completion) == [str(expected)]
    manifest = json.loads((found.directory / "manifest.json").read_text())
    assert manifest["parquet_sha256"] == sha256_file(found.directory / "data.parquet") == found.parquet_sha256
    assert manifest["parent_sha256"] == "ab" * 32
    assert "11" not in json.dumps(manifest["seed_sha256"])[:4]
    assert load_dataset(found.directory) == found
    assert {path.name for path in tmp_path.iterdir()} == {"data"}


def test_the_same_seed_gives_the_same_file_and_another_seed_other_problems(target: Family, tmp_path: Path) -> None:
    one, same = build(target, tmp_path / "1"), build(target, tmp_path / "2")
    other = build(target, tmp_path / "3", seed=12)
    assert one.parquet_sha256 == same.parquet_sha256 != other.parquet_sha256
    keys = [
        {row.key for row in read_rows(each.directory / "data.parquet") if row.source != "replay"}
        for each in (one, other)
    ]
    assert len(keys[0] & keys[1]) < 10


def test_no_row_asks_what_an_eval_asks(target: Family, tmp_path: Path) -> None:
    """Half of all items are forbidden: they must be missing, by key, and counted."""
    forbidden = target.items(5, 6000)
    found = build(target, tmp_path / "data", eval_items=[("sums", forbidden)])
    assert found.refused["contaminated"] > 20
    index = ContaminationIndex([("sums", forbidden)])
    check = check_dataset(found.directory, index)
    assert check.passed
    assert check.rows == found.rows
    swapped = next(row for row in read_rows(found.directory / "data.parquet") if "+" in row.key.split(" ")[1])
    hit = check_dataset(found.directory, ContaminationIndex([("x", [Item(swapped.key, (user("?"),), "1", "t")])]))
    assert len(hit.hits) == 1
    assert not hit.passed


def test_a_prompt_of_a_guard_is_never_asked(target: Family, tmp_path: Path) -> None:
    guard = Item("a guard", (user("Which hill stands behind the old mill of Arden town?"),), "Harrow", "t")
    prompts = [*PROMPTS[:5], "Tell me: which hill stands behind the old mill of Arden town?"]
    model = Adder()
    neighbours: dict[str, Eval] = {}
    found = build_dataset(
        model, target, RECIPE, tmp_path / "data", seed=3, eval_items=[("guards", [guard])],
        replay_prompts=prompts, neighbours=neighbours,
    )  # fmt: skip
    assert found.refused == {"contaminated": 1}
    assert not any("Arden" in text for text in model.asked)
    assert found.counts["replay"] == 5


def test_replies_that_hit_their_limit_are_marked(target: Family, tmp_path: Path) -> None:
    rows = read_rows(build(target, tmp_path / "data").directory / "data.parquet")
    replay = [row for row in rows if row.family == "replay"]
    assert {row.complete for row in replay} == {True, False}
    assert all(row.complete for row in rows if row.source in ("self", "gold"))


def test_more_problems_are_tried_until_a_tenth_is_its_own(target: Family, tmp_path: Path) -> None:
    patient = replace(RECIPE, samples=1, oversample=6.0)
    found = build(target, tmp_path / "data", skill=0.04, recipe=patient)
    assert found.self_share_of_target >= 0.1
    hopeless = build(target, tmp_path / "none", skill=0.0, recipe=patient)
    assert (hopeless.counts["self"], hopeless.counts["gold"]) == (0, 60)


def test_gold_answers_are_verified(target: Family, tmp_path: Path) -> None:
    class Liar(Family):
        def score(self, item: Item, reply: str) -> Score:
            return Score(False, 0.0)

    liar = Liar("sums", "chain_sum", DIGITS2, "Liar")
    with pytest.raises(UserError, match="no problem could be drawn"):
        build(liar, tmp_path / "data")
    assert not list(tmp_path.iterdir())


def test_prose_rows_have_no_prompt(target: Family, tmp_path: Path) -> None:
    prose = ["It was a long grey evening and nobody spoke.", "The second passage tells of ships."]
    found = build(target, tmp_path / "data", prose=prose, recipe=replace(RECIPE, prose_rows=2))
    rows = [row for row in read_rows(found.directory / "data.parquet") if row.source == "prose"]
    assert sorted(row.completion for row in rows) == sorted(prose)
    assert all(row.prompt == () for row in rows)


def test_a_damaged_data_set_is_found_out(target: Family, tmp_path: Path) -> None:
    found = build(target, tmp_path / "data")
    path = found.directory / "data.parquet"
    pq.write_table(pq.read_table(path).slice(0, 10), path)
    check = check_dataset(found.directory, ContaminationIndex())
    assert len(check.faults) == 2
    path.write_bytes(b"PAR1 and nothing else")
    assert not check_dataset(found.directory, ContaminationIndex()).passed
    with pytest.raises(UserError, match="exists already"):
        build(target, tmp_path / "data")


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("[data]\nproblems = 0", "data.problems"),
        ("[data]\nsamples = true", "data.samples"),
        ("[data]\ncolour = 1", "recipe: data.colour"),
        ("[data", "recipe"),
    ],
)
def test_a_wrong_recipe_is_named(text: str, field: str) -> None:
    with pytest.raises(UserError) as caught:
        DataRecipe.from_toml(text)
    assert caught.value.field == field


def test_a_recipe_is_read_from_its_table() -> None:
    found = DataRecipe.from_toml("[train]\nsteps = 3\n[data]\nproblems = 7\nreplay_temperature = 0.9\n")
    assert (found.problems, found.replay_temperature, found.samples) == (7, 0.9, DataRecipe().samples)
    assert found.with_settings(problems=9).problems == 9
