"""What an eval is made of: typed messages, items, and the small file that defines an eval.

An eval file (``evals/NAME.py`` in a lab) is one module with

    TITLE: str                     one line for people
    KIND: str                      kind of item, e.g. "arithmetic", "facts"; guards are pooled over kinds
    MAX_NEW_TOKENS: int            budget of a reply
    def items(seed: int, count: int) -> list[Item]
    def score(item: Item, reply: str) -> Score

``items`` draws ``count`` items from a 64-bit ``seed`` (fewer if the eval has fewer distinct ones); ``score`` is right
or wrong (``strict``) beside a lenient score in [0, 1].  ``score(item, item.gold)`` must be strict: an eval that fails
its own gold answers is refused.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol


@dataclass(frozen=True)
class Part:
    """One piece of a message. ``type`` says which of the other fields holds it."""

    type: Literal["text", "image", "file"]
    text: str = ""
    sha256: str = ""  # of an artifact, for images and files
    media_type: str = ""


@dataclass(frozen=True)
class Message:
    role: Literal["system", "user", "assistant"]
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        """All text parts, joined; what a text-only model sees."""
        return "\n".join(part.text for part in self.parts if part.type == "text")


def user(text: str) -> Message:
    return Message("user", (Part("text", text),))


def assistant(text: str) -> Message:
    return Message("assistant", (Part("text", text),))


@dataclass(frozen=True)
class Item:
    """One question. ``key`` is its normal form: two items with the same key are the same question.

    Normal form: operands of commutative operations sorted, lower case, single spaces.
    ``template`` groups items written from one pattern: standard errors are clustered by it.
    """

    key: str
    messages: tuple[Message, ...]
    gold: str
    template: str
    meta: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(row: dict[str, Any]) -> Item:
        messages = tuple(
            Message(message["role"], tuple(Part(**part) for part in message["parts"])) for message in row["messages"]
        )
        return Item(row["key"], messages, row["gold"], row["template"], dict(row.get("meta", {})))


@dataclass(frozen=True)
class Score:
    strict: bool
    lenient: float


class Eval(Protocol):
    """The face of an eval file once it is loaded."""

    name: str
    TITLE: str
    KIND: str
    MAX_NEW_TOKENS: int

    def items(self, seed: int, count: int) -> list[Item]: ...

    def score(self, item: Item, reply: str) -> Score: ...
