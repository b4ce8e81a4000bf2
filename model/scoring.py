"""Scoring that looks at what a reply says and not at how it is dressed.

A short answer is right when it is contained in the reply as whole words; a reply that lists alternatives (and so would
contain any answer) is wrong.  Used by the starter guards; an eval file may score in any other way.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable


def normal(text: str) -> str:
    """Lower case, accents and punctuation removed, single spaces."""
    decomposed = unicodedata.normalize("NFKD", text)
    plain = "".join(letter for letter in decomposed if not unicodedata.combining(letter)).lower()
    return " ".join(re.sub(r"[^a-z0-9]+", " ", plain).split())


def mentions(reply: str, phrase: str) -> bool:
    """Whether the phrase occurs in the reply as whole words, both in normal form."""
    return f" {normal(phrase)} " in f" {normal(reply)} "


def contains_answer(
    reply: str, accepted: Iterable[str], *, alternatives: Iterable[str] = (), question: str = "", max_others: int = 1
) -> bool:
    """Right when an accepted answer is in the reply and at most ``max_others`` wrong alternatives are.

    Alternatives that stand in the question itself, or inside an accepted answer, are not counted.
    """
    accepted = list(accepted)
    if not any(mentions(reply, answer) for answer in accepted):
        return False
    others = {
        normal(other)
        for other in alternatives
        if mentions(reply, other)
        and not mentions(question, other)
        and not any(mentions(answer, other) or mentions(other, answer) for answer in accepted)
    }
    return len(others) <= max_others
