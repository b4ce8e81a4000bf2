"""Guard: plain instructions whose result can be checked: repeat a sentence, copy a quotation, use given words.

SmolLM2-135M-Instruct: 102 of 110 right (chance: 0);
the last line that ``python -m bench.posttrain_trial --work DIR`` prints.
"""

from __future__ import annotations

import random

from model.items import Item, Score, user
from model.scoring import mentions, normal

TITLE = "Plain instructions"
KIND = "instructions"
MAX_NEW_TOKENS = 20

_NOUNS = """apple river window garden pencil candle bridge mountain kitchen bottle ladder blanket basket lantern saddle
hammer carpet mirror button pillow feather island tunnel valley meadow harbour castle market engine rocket""".split()
_ADJECTIVES = "old green quiet heavy broken shiny narrow wooden golden empty tiny warm dusty bright round".split()
_VERBS = "stood rested waited shone slept vanished appeared remained".split()
_PLACES = "near the lake|behind the house|under the table|by the road|in the forest|beside the church".split("|")


def _sentence(rng: random.Random) -> str:
    return f"The {rng.choice(_ADJECTIVES)} {rng.choice(_NOUNS)} {rng.choice(_VERBS)} {rng.choice(_PLACES)}."


def _one(rng: random.Random) -> Item:
    kind = rng.choice(("repeat", "repeat-quoted", "sentence-with", "sentence-with-two"))
    if kind == "repeat":
        gold = _sentence(rng)
        text = f"Repeat this sentence exactly: {gold}"
    elif kind == "repeat-quoted":
        gold = _sentence(rng)
        text = f'Copy the text between the quotation marks.\n"{gold}"'
    elif kind == "sentence-with":
        word = rng.choice(_NOUNS)
        gold = f"I saw a {word} near the old house yesterday."
        text = f'Write one short sentence that contains the word "{word}".'
    else:
        first, second = rng.sample(_NOUNS, 2)
        gold = f"The {first} was placed close to the {second}."
        text = f"Write a sentence about a {first} and a {second}."
    return Item(f"{kind} {normal(text)}", (user(text),), gold, f"instructions/{kind}", {"kind": kind})


def items(seed: int, count: int) -> list[Item]:
    rng = random.Random(seed)
    drawn: dict[str, Item] = {}
    while len(drawn) < count:
        item = _one(rng)
        drawn.setdefault(item.key, item)
    return list(drawn.values())


def score(item: Item, reply: str) -> Score:
    kind, question = item.meta["kind"], item.messages[-1].text
    if kind in ("repeat", "repeat-quoted"):
        right = mentions(reply, item.gold)
    else:
        wanted = [word for word in _NOUNS if mentions(question, word)]
        right = all(mentions(reply, word) or mentions(reply, f"{word}s") for word in wanted) and len(reply.split()) >= 5
    return Score(right, float(right))
