"""Guard: read two or three sentences and answer a question about them; a reply that names a wrong candidate too is wrong."""

from __future__ import annotations

import random

from model.items import Item, Score, user
from model.scoring import contains_answer, normal

TITLE = "Reading a short passage"
KIND = "reading"
MAX_NEW_TOKENS = 20

_NAMES = "Anna Ben Clara David Emma Felix Grace Henry Iris Jack Karen Leo Maria Nina Oscar Paula Robert Sara Tom Vera".split()
_COLOURS = "red blue green yellow black white brown purple orange grey".split()
_THINGS = "bicycle coat umbrella notebook car hat bag boat scarf lamp".split()
_PLACES = "library,bakery,museum,station,beach,school,hospital,market,park,theatre".split(",")
_JOBS = "doctor teacher baker pilot farmer lawyer nurse painter driver gardener".split()
_ANIMALS = "dog cat horse rabbit parrot goat turtle duck".split()


def _one(rng: random.Random) -> Item:
    kind = rng.choice(("colour", "place", "job", "pet", "order", "gift"))
    a, b, c = rng.sample(_NAMES, 3)
    if kind == "colour":
        thing = rng.choice(_THINGS)
        x, y, z = rng.sample(_COLOURS, 3)
        story, question = f"{a} has a {x} {thing}. {b} has a {y} {thing}. {c} has a {z} {thing}.", (
            f"What colour is {b}'s {thing}?"
        )
        gold, others = y, [x, z]
    elif kind == "place":
        x, y, z = rng.sample(_PLACES, 3)
        story = f"In the morning {a} went to the {x}. At the same time {b} went to the {y}, and {c} walked to the {z}."
        question, gold, others = f"Where did {a} go?", x, [y, z]
    elif kind == "job":
        x, y, z = rng.sample(_JOBS, 3)
        story = f"{a} works as a {x}. {b} is a {y}. Their friend {c} is a {z}."
        question, gold, others = f"What is {c}'s job?", z, [x, y]
    elif kind == "pet":
        x, y, z = rng.sample(_ANIMALS, 3)
        story = f"{a} owns a {x}, {b} owns a {y} and {c} owns a {z}."
        question, gold, others = f"Which animal does {a} own?", x, [y, z]
    elif kind == "order":
        story = f"Three friends ran a race. {a} finished first, {b} finished second and {c} finished last."
        question, gold, others = "Who won the race?", a, [b, c]
    else:
        x, y = rng.sample(_THINGS, 2)
        story = f"For her birthday {a} got a {x} from {b} and a {y} from {c}."
        question, gold, others = f"Who gave the {x}?", b, [c]
    text = f"{story}\n{question}"
    return Item(f"{kind} {normal(text)}", (user(text),), gold, f"reading/{kind}", {"others": others})


def items(seed: int, count: int) -> list[Item]:
    rng = random.Random(seed)
    drawn: dict[str, Item] = {}
    while len(drawn) < count:
        item = _one(rng)
        drawn.setdefault(item.key, item)
    return list(drawn.values())


def score(item: Item, reply: str) -> Score:
    right = contains_answer(reply, [item.gold], alternatives=item.meta["others"], max_others=0)
    return Score(right, float(right))
