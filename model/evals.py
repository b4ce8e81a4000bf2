"""Loading, proving and running evals.

``evals/NAME.py`` files in a lab were committed by a person and are imported in process.  A file that somebody hands in
is not: it goes through ``model.foreign_eval`` and a sandbox, and has the same face afterwards.

An eval may also define ``CHANCE: float``, the accuracy of guessing.  Whatever it says, no guess is assumed to be worse
than always giving the most frequent gold answer.

Not covered: multi-turn evals and model-graded answers.
"""

from __future__ import annotations

import hashlib
import importlib.util
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

from model.items import Eval, Item, Message, Score
from workspace import stats
from workspace.errors import UserError

Progress = Callable[[int, int], None]

MAX_REPLY_TOKENS = 1024
_GARBAGE = ("", " ", "?", "I do not know.", "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15", "qzx " * 20)
_PROOF_ITEMS = 24
_DRAW_ROUNDS = 12


class ModelReply(Protocol):
    """One answer and what it cost."""

    @property
    def text(self) -> str: ...

    @property
    def tokens_in(self) -> int: ...

    @property
    def tokens_out(self) -> int: ...


class TextModel(Protocol):
    """What evals and data sets need of a model; ``model.language_model.LanguageModel`` is one."""

    def reply(
        self,
        conversations: Sequence[Sequence[Message]],
        *,
        max_new_tokens: int | Sequence[int],
        temperature: float = 0.0,
        seed: int = 0,
        on_progress: Progress | None = None,
    ) -> Sequence[ModelReply]: ...

    def token_nll(self, texts: Sequence[str]) -> list[tuple[float, int]]: ...


@runtime_checkable
class ScoresMany(Protocol):
    """An eval that scores in batches, because each call costs a sandbox."""

    def score_many(self, items: Sequence[Item], replies: Sequence[str]) -> list[Score]: ...


@dataclass(eq=False)
class FileEval:
    """An eval file that was imported in process."""

    name: str
    module: ModuleType
    TITLE: str
    KIND: str
    MAX_NEW_TOKENS: int
    CHANCE: float = 0.0

    def items(self, seed: int, count: int) -> list[Item]:
        return list(self.module.items(seed, count))

    def score(self, item: Item, reply: str) -> Score:
        found = self.module.score(item, reply)
        if not isinstance(found, Score):
            raise UserError("score() must return a Score", field=f"evals/{self.name}.py score", value=found)
        return found


@dataclass(frozen=True)
class ItemResult:
    """One item's outcome. ``lenient`` lies in [0, 1]."""

    key: str
    template: str
    reply: str
    strict: bool
    lenient: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(row: dict[str, Any]) -> ItemResult:
        return ItemResult(row["key"], row["template"], row["reply"], bool(row["strict"]), float(row["lenient"]))


@dataclass(frozen=True)
class EvalResult:
    """One model on one list of items; standard errors are clustered by template."""

    eval: str
    rows: list[ItemResult]
    accuracy: float
    stderr: float
    lenient: float
    lenient_stderr: float
    tokens_in: int = 0
    tokens_out: int = 0
    wall_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "eval": self.eval, "n": len(self.rows), "strict": self.accuracy, "stderr": self.stderr,
            "lenient": self.lenient, "lenient_stderr": self.lenient_stderr,
            "tokens_in": self.tokens_in, "tokens_out": self.tokens_out, "wall_s": round(self.wall_s, 3),
            "rows": [row.to_json() for row in self.rows],
        }  # fmt: skip


def load_evals(directory: Path) -> dict[str, Eval]:
    """Every ``*.py`` of a folder by its name. Raises UserError naming the file and the field."""
    if not directory.is_dir():
        raise UserError("no such folder of evals", field=str(directory))
    paths = sorted(path for path in directory.glob("*.py") if not path.name.startswith("_"))
    return {path.stem: load_eval(path) for path in paths}


def load_eval(path: Path) -> FileEval:
    """Import one eval file that a person committed."""
    spec = importlib.util.spec_from_file_location(f"nightshift_eval_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UserError(f"cannot be imported: {type(error).__name__}: {error}", field=str(path)) from error
    check_fields(path.name, {name: getattr(module, name, None) for name in (*FIELDS, "CHANCE")})
    for name in ("items", "score"):
        if not callable(getattr(module, name, None)):
            raise UserError("is missing", field=f"{path.name} {name}", allowed="a function, see model/items.py")
    chance = getattr(module, "CHANCE", 0.0)
    return FileEval(path.stem, module, module.TITLE, module.KIND, module.MAX_NEW_TOKENS, float(chance))


FIELDS = ("TITLE", "KIND", "MAX_NEW_TOKENS")


def check_fields(where: str, found: dict[str, Any]) -> None:
    """The declared values of an eval file. Raises UserError naming file and field."""
    for name in ("TITLE", "KIND"):
        value = found.get(name)
        if not isinstance(value, str) or not 0 < len(value.strip()) <= 200:
            raise UserError("is wrong or missing", field=f"{where} {name}", value=value, allowed="1 to 200 characters")
    tokens = found.get("MAX_NEW_TOKENS")
    if type(tokens) is not int or not 1 <= tokens <= MAX_REPLY_TOKENS:
        allowed = f"a whole number from 1 to {MAX_REPLY_TOKENS}"
        raise UserError("is wrong or missing", field=f"{where} MAX_NEW_TOKENS", value=tokens, allowed=allowed)
    chance = found.get("CHANCE")
    if chance is not None and not (isinstance(chance, int | float) and 0 <= chance < 1):
        raise UserError("is wrong", field=f"{where} CHANCE", value=chance, allowed="a number in [0, 1)")


def validate_eval(subject: Eval, seed: int = 1, count: int = _PROOF_ITEMS) -> None:
    """Prove an eval before it may judge anyone.

    Gold answers score strict, empty and meaningless replies do not, keys are unique, and a seed gives the same items
    again.  Raises UserError naming the eval and the field.
    """
    where = f"eval {subject.name}"
    items = subject.items(seed, count)
    if not items:
        raise UserError("gives no items", field=f"{where} items")
    if [item.to_json() for item in subject.items(seed, count)] != [item.to_json() for item in items]:
        raise UserError("gives other items for the same seed", field=f"{where} items")
    twice = [key for key, times in Counter(item.key for item in items).items() if times > 1]
    if twice:
        raise UserError("gives two items with one key", field=f"{where} items", value=twice[0])
    if any(not item.messages or item.messages[-1].role != "user" for item in items):
        raise UserError("gives an item that does not end with a user's message", field=f"{where} items")
    _check_scores(where, items, score_many(subject, items, [item.gold for item in items]), right=True)
    pairs = [(item, text) for text in _GARBAGE for item in items if item.gold.strip().lower() != text.strip().lower()]
    wrong = [item for item, _ in pairs]
    _check_scores(where, wrong, score_many(subject, wrong, [text for _, text in pairs]), right=False)


def _check_scores(where: str, items: Sequence[Item], scores: Sequence[Score], *, right: bool) -> None:
    for item, score in zip(items, scores, strict=True):
        if not 0 <= score.lenient <= 1:
            raise UserError("is outside [0, 1]", field=f"{where} score lenient", value=score.lenient)
        if right and not score.strict:
            raise UserError("its own gold answer is not strictly right", field=f"{where} score", value=item.gold)
        if not right and score.strict:
            raise UserError("an empty or meaningless reply is right", field=f"{where} score", value=item.key)


def score_many(subject: Eval, items: Sequence[Item], replies: Sequence[str]) -> list[Score]:
    if isinstance(subject, ScoresMany):
        return subject.score_many(items, replies)
    return [subject.score(item, reply) for item, reply in zip(items, replies, strict=True)]


def draw_items(subject: Eval, seed: int, count: int, exclude: Collection[str] = ()) -> list[Item]:
    """``count`` items whose keys are neither in ``exclude`` nor repeated (fewer when the eval runs out of them).

    Asks again with seeds derived from ``seed`` while items are refused.
    """
    taken = set(exclude)
    drawn: list[Item] = []
    for turn in range(_DRAW_ROUNDS):
        missing = count - len(drawn)
        if missing <= 0:
            break
        before = len(drawn)
        wanted = missing if turn == 0 else 2 * missing + 8
        found = subject.items(derive_seed(seed, "draw", turn), wanted)
        for item in found:
            if item.key not in taken and len(drawn) < count:
                taken.add(item.key)
                drawn.append(item)
        if len(drawn) == before and len(found) < wanted:
            break  # it gave all that it has, and nothing of it is new
    return drawn


def run_eval(model: TextModel, subject: Eval, items: Sequence[Item], on_progress: Progress | None = None) -> EvalResult:
    """Greedy replies to every item, scored."""
    return run_evals(model, [(subject, items)], on_progress)[0]


def run_evals(
    model: TextModel, work: Sequence[tuple[Eval, Sequence[Item]]], on_progress: Progress | None = None
) -> list[EvalResult]:
    """Several evals in one batched call: a small model answers many short questions at once far faster.

    The wall time of the call is shared out by tokens.
    """
    started = time.monotonic()
    conversations = [item.messages for _, items in work for item in items]
    budgets = [subject.MAX_NEW_TOKENS for subject, items in work for _ in items]
    replies: Sequence[ModelReply] = []
    if conversations:
        replies = model.reply(conversations, max_new_tokens=budgets, temperature=0.0, on_progress=on_progress)
    wall_s = time.monotonic() - started
    tokens = sum(reply.tokens_in + reply.tokens_out for reply in replies)
    results = []
    start = 0
    for subject, items in work:
        part = replies[start : start + len(items)]
        start += len(items)
        scores = score_many(subject, items, [reply.text for reply in part])
        rows = [
            ItemResult(item.key, item.template, reply.text, score.strict, score.lenient)
            for item, reply, score in zip(items, part, scores, strict=True)
        ]
        share = sum(reply.tokens_in + reply.tokens_out for reply in part) / tokens if tokens else 0.0
        cost = (sum(reply.tokens_in for reply in part), sum(reply.tokens_out for reply in part), wall_s * share)
        results.append(summarise(subject.name, rows, *cost))
    return results


def summarise(
    name: str, rows: list[ItemResult], tokens_in: int = 0, tokens_out: int = 0, wall_s: float = 0.0
) -> EvalResult:
    """Accuracy and mean lenient score with standard errors clustered by template."""
    templates = stats.sampled([row.template for row in rows])
    strict = [row.strict for row in rows]
    accuracy = sum(strict) / len(rows) if rows else float("nan")
    lenient = stats.mean_with_stderr([row.lenient for row in rows], templates)
    return EvalResult(
        name, rows, accuracy, stats.binomial_stderr(strict, templates), lenient.estimate, lenient.stderr,
        tokens_in, tokens_out, wall_s,
    )  # fmt: skip


def chance_of(subject: Eval, items: Sequence[Item]) -> float:
    """What guessing scores: the declared CHANCE or the share of the most frequent gold answer, whichever is more."""
    declared = float(getattr(subject, "CHANCE", 0.0))
    if len(items) < 2:
        return declared
    times = Counter(item.gold.strip().lower() for item in items).most_common(1)[0][1]
    return max(declared, times / len(items) if times > 1 else 0.0)


def items_sha256(items: Iterable[Item]) -> str:
    """One hash of a list of items, whatever their order."""
    digest = hashlib.sha256()
    for key in sorted(item.key for item in items):
        digest.update(key.encode() + b"\0")
    return digest.hexdigest()


def derive_seed(seed: int, *labels: object) -> int:
    """An independent 64-bit seed: SHA-256 of a seed and what it is for. Neighbouring seeds have nothing in common."""
    text = "\0".join(str(part) for part in (seed, *labels))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def item_seeds(seed: int, count: int) -> list[int]:
    """``count`` independent 64-bit seeds, one per item."""
    stream = random.Random(derive_seed(seed, "items"))
    return [stream.getrandbits(64) for _ in range(count)]
