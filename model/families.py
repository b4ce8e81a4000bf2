"""reasoning-gym families as evals: independent items, normal-form keys, strict scoring of what a reply really answers.

Item i of a reasoning-gym data set uses ``seed + i``, so neighbouring seeds share their items.  Here every item has a
random 64-bit seed of its own, and two items are the same when their keys are, whatever their seeds.

A reply is strict when the family's own verifier gives exactly 1.0 for the answer taken out of it (``answer_in``),
lenient to the degree of the verifier's best score, or fully when it mentions the gold answer.  How the answer is taken
out depends on what the family's gold answers look like:

    number   a first line that is nothing but a number, else what is stated after "=", "is" or ":" (the last of at most
             three such values), else the only number, or the only one that the question does not have
    choice   of a closed set: the first word when it stands alone, else the only member of the set that is mentioned
    word     the reply when it is one word, else the only quoted or stated word
    text     the first line that says something, without "The answer is" and without a last full stop

so "The answer is 42." counts, and a list of many numbers does not.
Not covered: families whose answers need many lines (mazes, boards); they are run, and come out at the floor.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from model.contamination import canonical_expression
from model.evals import derive_seed, item_seeds
from model.items import Eval, Item, Score, user
from workspace import stats
from workspace.errors import UserError

AnswerKind = Literal["number", "choice", "word", "text"]

PROBE_ITEMS = 64
MAX_CHOICES = 6
MAX_STATED = 3
DISTINCT_BLOCK = 250
DISTINCT_DRAWS = 8000
DISTINCT_CONFIDENCE = 0.99
COUNTED_WHEN_SEEN = 8  # mean draws per distinct item from which the items are simply counted
MAX_TRIES_PER_ITEM = 30

_NUMBER = r"-?(?:0x[0-9a-fA-F]+|\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?(?:/\d+)?)"
_NUMBER_RE = re.compile(rf"(?<![\w.]){_NUMBER}(?!\w)")
_STATED_NUMBER = re.compile(
    rf"(?:=|:|\b(?:is|are|equals?|gives?|to get)\b)\s*(?:equal to\s+|approximately\s+|exactly\s+)?[*$`\"'(\[\\]*"
    rf"({_NUMBER})(?![\w])(?!\s*[-+*/×]\s*\d)"
)
_BARE_NUMBER = re.compile(rf"[*$`\"']*({_NUMBER})[*$`\"'.]*")
_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")
_LEAD_IN = re.compile(
    r"^(?:(?:so|thus|therefore|sure|here)[,!]?\s+)?(?:the|my)?\s*(?:final\s+)?(?:answer|result)\s*(?:is)?\s*:?\s*",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"[\"“`*']([^\s\"”`*']+)[\"”`*']")
_STATED_WORD = re.compile(r"(?::|\b(?:is|becomes))\s+[\"“`*']*([^\W\d_]+)[\"”`*']*\s*(?:[.\n]|$)")


@dataclass(frozen=True)
class DistinctItems:
    """How many different items a family has. ``low`` is a lower bound at DISTINCT_CONFIDENCE."""

    estimate: float
    low: float
    draws: int
    method: Literal["counted", "estimated"]

    def to_json(self) -> dict[str, Any]:
        estimate = None if self.estimate == float("inf") else round(self.estimate)
        return {"estimate": estimate, "low": int(self.low), "draws": self.draws, "method": self.method}


@dataclass(eq=False)
class Family:
    """One reasoning-gym data set with one configuration."""

    name: str
    dataset: str
    config: Mapping[str, Any]
    TITLE: str
    KIND: str = "puzzle"
    MAX_NEW_TOKENS: int = 16

    def __post_init__(self) -> None:
        _ = self._generator  # refuse a wrong configuration now, by name

    @staticmethod
    def from_settings(name: str, entry: Any) -> Family:
        """From ``[survey.families.NAME]``: a mapping or a settings object with the same names."""
        found = entry if isinstance(entry, Mapping) else entry.model_dump()
        unknown = sorted(set(found) - {"dataset", "config", "title", "kind", "max_new_tokens"})
        where = f"survey.families.{name}"
        if unknown or not isinstance(found.get("dataset"), str):
            field = f"{where}.{unknown[0]}" if unknown else f"{where}.dataset"
            raise UserError(
                "unknown key" if unknown else "is missing", field=field, allowed="dataset, config, title, …"
            )
        title = found.get("title") or found["dataset"].replace("_", " ")
        tokens = int(found.get("max_new_tokens", 16))
        return Family(name, found["dataset"], dict(found.get("config", {})), title, found.get("kind", "puzzle"), tokens)

    @cached_property
    def _generator(self) -> Any:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS

        where = f"survey.families.{self.name}"
        if self.dataset not in DATASETS:
            allowed = "a reasoning-gym data set, such as " + ", ".join(sorted(DATASETS)[:5])
            raise UserError("is no data set", field=f"{where}.dataset", value=self.dataset, allowed=allowed)
        try:
            return reasoning_gym.create_dataset(self.dataset, seed=0, size=1, **self.config)
        except (AssertionError, TypeError, ValueError) as error:
            message = f"the data set {self.dataset} refuses it: {error}"
            raise UserError(message, field=f"{where}.config", value=dict(self.config)) from error

    def entry(self, item_seed: int) -> dict[str, Any]:
        """reasoning-gym's question, answer and metadata of one 64-bit seed (index i of seed 0 is seed i)."""
        found: dict[str, Any]
        try:
            found = self._generator[item_seed]
        except IndexError:  # a few data sets prepare a list first
            import reasoning_gym

            found = reasoning_gym.create_dataset(self.dataset, seed=item_seed, size=1, **self.config)[0]
        return found

    def item(self, item_seed: int) -> Item:
        entry = self.entry(item_seed)
        question = str(entry["question"]).strip()
        shape = _shape(entry["metadata"])
        template = f"{self.name}/{shape}" if shape else self.name
        meta = {"seed": str(item_seed), "family": self.name}
        return Item(self._key(entry), (user(question),), str(entry["answer"]), template, meta)

    def items(self, seed: int, count: int) -> list[Item]:
        """``count`` items with different keys; fewer when the family runs out of them."""
        found: dict[str, Item] = {}
        misses = 0  # in a row: so many mean that there are no others
        for item_seed in item_seeds(seed, count * MAX_TRIES_PER_ITEM):
            if len(found) >= count or misses > 200 + COUNTED_WHEN_SEEN * len(found):
                break
            item = self.item(item_seed)
            misses = 0 if item.key not in found else misses + 1
            found.setdefault(item.key, item)
        return list(found.values())

    def score(self, item: Item, reply: str) -> Score:
        entry = self.entry(int(item.meta["seed"]))
        candidates = answer_in(reply, self.answer_kind, item.messages[-1].text, self.choices)
        scores = [self._verify(candidate, entry) for candidate in candidates]
        best = max(scores, default=0.0)
        lenient = max(best, self._verify(reply.strip(), entry), 1.0 if _mentions(reply, item.gold) else 0.0)
        return Score(best == 1.0, min(1.0, max(0.0, lenient)))

    def _verify(self, answer: str, entry: dict[str, Any]) -> float:
        if not answer:
            return 0.0
        try:
            return float(self._generator.score_answer(answer, entry))
        except Exception:  # noqa: BLE001  verifiers parse whatever a model wrote; what they choke on is wrong
            return 0.0

    @cached_property
    def _probe(self) -> list[dict[str, Any]]:
        return [self.entry(item_seed) for item_seed in item_seeds(derive_seed(0, "probe", self.name), PROBE_ITEMS)]

    @cached_property
    def choices(self) -> tuple[str, ...]:
        """The closed set of answers, empty when there is none."""
        golds = {str(entry["answer"]).strip() for entry in self._probe}
        closed = len(golds) <= MAX_CHOICES and not all(_BARE_NUMBER.fullmatch(gold) for gold in golds)
        return tuple(sorted(golds)) if closed else ()

    @cached_property
    def answer_kind(self) -> AnswerKind:
        golds = [str(entry["answer"]).strip() for entry in self._probe]
        if self.choices:
            return "choice"
        if all(_BARE_NUMBER.fullmatch(gold) for gold in golds):
            return "number"
        return "word" if all(re.fullmatch(r"[^\W\d_]+", gold) for gold in golds) else "text"

    @cached_property
    def CHANCE(self) -> float:  # noqa: N802  the name that eval files use
        """What always giving the most frequent answer would score."""
        answers = Counter(str(entry["answer"]).strip().lower() for entry in self._probe)
        times = answers.most_common(1)[0][1]
        return times / PROBE_ITEMS if times > 1 else 0.0

    def _key(self, entry: dict[str, Any]) -> str:
        metadata = entry["metadata"]
        form = _KEYS.get(self.dataset, _expression_key)(metadata)
        if form is not None:
            return form
        question = str(entry["question"])
        names = [
            *getattr(self._generator.config, "male_names", ()),
            *getattr(self._generator.config, "female_names", ()),
        ]
        return f"{self.dataset} {_rename(' '.join(question.split()), names).lower()}"


def load_families(entries: Mapping[str, Any]) -> dict[str, Family]:
    """All ``[survey.families.*]``. Raises UserError naming the key."""
    return {name: Family.from_settings(name, entry) for name, entry in entries.items()}


def count_distinct(subject: Eval, needed: int = 0, seed: int = 0) -> DistinctItems:
    """How many different items an eval draws from, as far as ``needed`` asks.

    Single items are drawn from independent seeds in blocks until the lower bound reaches ``needed`` or DISTINCT_DRAWS
    are spent; the bound is the better of two that both err on the low side (equal pairs, and Chao's).  Small ones are
    counted: with every item seen COUNTED_WHEN_SEEN times on average, few are still missing.
    """
    times: Counter[str] = Counter()
    draws = 0
    estimate, low = 0.0, 0.0
    for turn in range(DISTINCT_DRAWS // DISTINCT_BLOCK):
        block = item_seeds(derive_seed(seed, "distinct", subject.name, turn), DISTINCT_BLOCK)
        drawn = [subject.item(each) for each in block] if isinstance(subject, Family) else _singles(subject, block)
        times.update(item.key for item in drawn)
        draws += len(drawn)
        if draws >= COUNTED_WHEN_SEEN * len(times):
            return DistinctItems(len(times), len(times), draws, "counted")
        seen = list(times.values())
        by_pairs, by_chao = (
            estimator(seen, DISTINCT_CONFIDENCE) for estimator in (stats.distinct_from_collisions, stats.distinct_chao1)
        )
        estimate, low = max(by_pairs[0], by_chao[0]), max(by_pairs[1], by_chao[1])
        if needed and low >= needed:
            break
    return DistinctItems(max(estimate, len(times)), max(low, len(times)), draws, "estimated")


def _singles(subject: Eval, seeds: Sequence[int]) -> list[Item]:
    items_of = getattr(subject, "items_of", None)  # a sandboxed eval draws a whole block at once
    if items_of is not None:
        return list(items_of(seeds))
    return [item for seed in seeds for item in subject.items(seed, 1)]


def answer_in(reply: str, kind: AnswerKind, question: str = "", choices: Sequence[str] = ()) -> list[str]:
    """The answer that a reply gives, in the one or two spellings a verifier may want; empty when it gives none."""
    reply = reply.strip()
    boxed = _BOXED.findall(reply)
    if boxed:
        reply = boxed[-1].strip()
    if kind == "number":
        number = _number_in(reply, question)
        return [number] if number is not None else []
    if kind == "choice":
        choice = _choice_in(reply, choices)
        return [choice] if choice is not None else []
    if kind == "word":
        word = _word_in(reply, question)
        return [word, word.lower()] if word is not None else []
    return _text_in(reply)


def _number_in(reply: str, question: str) -> str | None:
    lines = [line.strip() for line in reply.splitlines() if line.strip()]
    bare = [match.group(1) for line in lines if (match := _BARE_NUMBER.fullmatch(line))]
    if bare and lines and _BARE_NUMBER.fullmatch(lines[0]):
        return _tidy(bare[0]) if len({_tidy(each) for each in bare}) == 1 else None
    stated = [_tidy(match.group(1)) for match in _STATED_NUMBER.finditer(reply)]
    if stated:
        return stated[-1] if len(set(stated)) <= MAX_STATED else None
    numbers = list(dict.fromkeys(_tidy(match.group()) for match in _NUMBER_RE.finditer(reply)))
    if len(numbers) != 1:
        asked = {_tidy(match.group()) for match in _NUMBER_RE.finditer(question)}
        numbers = [number for number in numbers if number not in asked] if len(numbers) <= len(asked) + 1 else []
    return numbers[0] if len(numbers) == 1 else None


def _tidy(number: str) -> str:
    """Without thousands commas; 68.0 is 68."""
    number = number.replace(",", "")
    return re.sub(r"\.0+$", "", number)


def _choice_in(reply: str, choices: Sequence[str]) -> str | None:
    mentioned = {choice for choice in choices if re.search(rf"(?<!\w){re.escape(choice)}(?!\w)", reply, re.IGNORECASE)}
    ordered = sorted(choices, key=len, reverse=True)
    first = re.match(
        rf"\W*({'|'.join(map(re.escape, ordered))})(?:[.,!;:]|\s*\n|\s*$)(.*)", reply, re.IGNORECASE | re.DOTALL
    )
    if first is not None:
        after = re.match(r"\W*(?:or\W+)?([\w ]*)", first.group(2))
        rest = after.group(1).strip().lower() if after is not None else ""
        if not any(rest == other.lower() for other in choices):
            return next(choice for choice in choices if choice.lower() == first.group(1).lower())
    return mentioned.pop() if len(mentioned) == 1 else None


def _word_in(reply: str, question: str) -> str | None:
    single = re.fullmatch(r"\W*([^\W\d_]+)\W*", reply)
    if single is not None:
        return str(single.group(1))
    asked = {word.lower() for word in re.findall(r"[^\W\d_]+", question)}
    for pattern in (_QUOTED, _STATED_WORD):
        found = {match.strip(".,") for match in pattern.findall(reply)}
        found = {word for word in found if word.lower() not in asked}
        if len(found) == 1:
            return str(found.pop())
    return None


def _text_in(reply: str) -> list[str]:
    for line in reply.splitlines():
        text = _LEAD_IN.sub("", line.strip()).strip()
        if text and not text.endswith(":"):
            bracketed = re.search(r"\[[^\[\]]*\]", text)
            spellings = [bracketed.group()] if bracketed else [text]
            spellings += [text.strip("\"'`*"), text.rstrip(".").strip("\"'`*")]
            return list(dict.fromkeys(spellings))
    return []


def _mentions(reply: str, gold: str) -> bool:
    """Whether the gold answer stands in the reply as whole words."""
    return bool(gold) and re.search(rf"(?<![\w.]){re.escape(gold)}(?!\w|\.\d)", reply, re.IGNORECASE) is not None


def _shape(metadata: Mapping[str, Any]) -> str:
    """The pattern of an item: its expression with every number replaced."""
    expression = metadata.get("expression") or metadata.get("equation") or ""
    return re.sub(r"[a-z]", "x", re.sub(r"\d+(?:\.\d+)?", "#", str(expression)))


def _rename(text: str, names: Sequence[str]) -> str:
    """People's names in order of appearance become n1, n2, …: other names make no other question."""
    known: dict[str, str] = {}
    wanted = set(names)

    def swap(match: re.Match[str]) -> str:
        word = match.group()
        return known.setdefault(word, f"n{len(known) + 1}") if word in wanted else word

    return re.sub(r"[^\W\d_]+", swap, text) if wanted else text


def _expression_key(metadata: Mapping[str, Any]) -> str | None:
    text = metadata.get("expression") or metadata.get("equation")
    return canonical_expression(str(text)) if text else None


def _sorted_numbers_key(metadata: Mapping[str, Any]) -> str:
    numbers = metadata.get("original_numbers") or metadata["numbers"]
    return f"{metadata['source_dataset']} {sorted(str(number) for number in numbers)}"


def _sorting_key(metadata: Mapping[str, Any]) -> str:
    return f"{_sorted_numbers_key(metadata)} {metadata.get('direction', '')}"


def _legs_key(metadata: Mapping[str, Any]) -> str:
    return f"leg_counting {sorted(metadata['animals'].items())}"


def _syllogism_key(metadata: Mapping[str, Any]) -> str:
    """Other nouns and the other order of the two premises make no other syllogism."""

    def renamed(statements: Sequence[str]) -> str:
        nouns: dict[str, str] = {}
        fixed = {"all", "no", "some", "are", "not"}
        words = " / ".join(statements).lower().replace(".", "").split()
        plain = [word if word in fixed or word == "/" else nouns.setdefault(word, f"n{len(nouns)}") for word in words]
        return " ".join(plain)

    first, second, conclusion = metadata["premise1"], metadata["premise2"], metadata["conclusion"]
    return "syllogism " + min(renamed([first, second, conclusion]), renamed([second, first, conclusion]))


_KEYS: dict[str, Callable[[Mapping[str, Any]], str | None]] = {
    "gcd": _sorted_numbers_key,
    "lcm": _sorted_numbers_key,
    "number_sorting": _sorting_key,
    "leg_counting": _legs_key,
    "syllogism": _syllogism_key,
}


# Ten kinds of short question. Which of them a night takes follows from the survey, not from this list; some are here
# although a small model is hopeless at them, has nothing left to learn or soon would run out of items.
STARTER_FAMILIES_TOML = """\
[survey.families.sums-and-differences]
dataset = "chain_sum"
title = "Sums and differences of two numbers of two digits"
kind = "arithmetic"
max_new_tokens = 24
config = { min_terms = 2, max_terms = 2, min_digits = 2, max_digits = 2 }

[survey.families.long-sums]
dataset = "basic_arithmetic"
title = "Sums of two numbers of three digits"
kind = "arithmetic"
max_new_tokens = 24
config = { min_terms = 2, max_terms = 2, min_digits = 3, max_digits = 3, \
operators = ["+"], allow_parentheses = false, allow_negation = false }

[survey.families.decimals]
dataset = "decimal_chain_sum"
title = "Sums and differences of two decimals"
kind = "arithmetic"
max_new_tokens = 24
config = { min_terms = 2, max_terms = 2, min_digits = 1, max_digits = 1, \
min_decimal_places = 1, max_decimal_places = 1 }

[survey.families.products]
dataset = "products"
title = "Products of two numbers of two digits"
kind = "arithmetic"
max_new_tokens = 24
config = { min_terms = 2, max_terms = 2, min_digits = 2, max_digits = 2 }

[survey.families.common-divisors]
dataset = "gcd"
title = "Greatest common divisors up to 200"
kind = "arithmetic"
max_new_tokens = 24
config = { min_value = 1, max_value = 200 }

[survey.families.common-multiples]
dataset = "lcm"
title = "Least common multiples of numbers up to 200"
kind = "arithmetic"
max_new_tokens = 24
config = { min_value = 1, max_value = 200 }

[survey.families.equations]
dataset = "simple_equations"
title = "Linear equations with one unknown"
kind = "algebra"
max_new_tokens = 24
config = { min_terms = 2, max_terms = 2, min_value = 1, max_value = 30 }

[survey.families.letter-counting]
dataset = "letter_counting"
title = "How often a letter occurs in a few words"
kind = "words"
max_new_tokens = 24
config = { min_words = 3, max_words = 6 }

[survey.families.spelling-backward]
dataset = "spell_backward"
title = "Short words spelt backward"
kind = "words"
max_new_tokens = 16
config = { min_word_len = 3, max_word_len = 5 }

[survey.families.leg-counting]
dataset = "leg_counting"
title = "How many legs a few animals have together"
kind = "counting"
max_new_tokens = 24
config = { min_animals = 2, max_animals = 2, max_instances = 9 }

[survey.families.syllogisms]
dataset = "syllogism"
title = "Does a conclusion follow from two statements"
kind = "logic"
max_new_tokens = 16
config = {}
"""
