"""Is a training row the same question as an eval item? Normal forms, and n-gram overlap for free text.

A normal form makes equal what asks the same: ``45 + 23`` and ``23+45`` (operands of commutative operations sorted),
``2*x + 1 = 5`` for any letter, any case and spacing.  Keys of arithmetic are the expression itself, whatever family
asked for it, so that one family's items are found in another's rows and inside replies.

Free text is also compared by its 8-word n-grams (a shorter question by the whole of it).  N-grams that several items of
one eval share are its wording, not its content, and do not count.  Rows of generated families are compared by key and
text alone: their wording is shared by construction.

Not covered: paraphrases in other words and translations.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

from model.items import Item

NGRAM = 8
SHORTEST_NGRAM = 3  # words; shorter questions are compared by key and text only
BOILERPLATE_ITEMS = 3  # an n-gram in this many items of an eval is wording

_MAX_EXPRESSION_CHARS = 200
_WORD = re.compile(r"[^\W_]+(?:\.\d+)?|[-+*/=<>^%]")
_OPERATOR_WORDS = (
    (re.compile(r"\b(?:plus|added to)\b"), "+"),
    (re.compile(r"\bminus\b"), "-"),
    (re.compile(r"\b(?:times|multiplied by)\b|[×·]|(?<=\d)\s*x\s*(?=\d)"), "*"),
    (re.compile(r"\bdivided by\b|÷"), "/"),
    (re.compile("[−–]"), "-"),
)
_EXPRESSION = re.compile(r"[(\-]*\d[\d.]*(?:[\s()]*(?:\*\*|[-+*/])[\s()\-]*\d[\d.]*)+\)*")


@dataclass(frozen=True)
class Hit:
    """What a row has in common with an eval."""

    eval: str
    kind: str  # key | text | expression | n-gram
    what: str

    def __str__(self) -> str:
        return f"{self.kind} of {self.eval}: {self.what[:80]}"


def normal_text(text: str) -> str:
    """Lower case, words, numbers and signs of arithmetic only, single spaces."""
    return " ".join(words(text))


def words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def canonical_expression(text: str) -> str | None:
    """Normal form of an arithmetic expression or equation, or None when it is none.

    Sums are flattened to signed terms and sorted, products to sorted factors; the letters of variables do not matter
    when there is one; a trailing ``=`` is dropped.
    """
    text = text.strip().rstrip("=?. ").strip()
    if not text or len(text) > _MAX_EXPRESSION_CHARS:
        return None
    names: dict[str, str] = {}
    try:
        sides = [_canonical(ast.parse(_plain(side), mode="eval").body, names) for side in text.split("=")]
    except (SyntaxError, ValueError, RecursionError):
        return None
    return " = ".join(sides)


def expressions_in(text: str) -> set[str]:
    """Normal forms of all arithmetic expressions in free text, "23 plus 45" included."""
    lowered = text.lower().replace(",", "")
    for pattern, symbol in _OPERATOR_WORDS:
        lowered = pattern.sub(symbol, lowered)
    found = (canonical_expression(match.group()) for match in _EXPRESSION.finditer(lowered))
    return {form for form in found if form is not None}


def question_text(item: Item) -> str:
    return "\n".join(message.text for message in item.messages)


class ContaminationIndex:
    """All eval items that no training row may ask for; ``add`` them, then ``check`` rows."""

    def __init__(self, evals: Iterable[tuple[str, Sequence[Item]]] = ()) -> None:
        self.keys: dict[str, str] = {}
        self.texts: dict[str, str] = {}
        self._ngrams: dict[tuple[str, ...], str] = {}
        self._lengths: set[int] = set()
        self.items = 0
        by_eval: dict[str, list[Item]] = defaultdict(list)
        for name, items in evals:
            by_eval[name].extend(items)
        for name, items in by_eval.items():
            self._add(name, items)

    def _add(self, name: str, items: Sequence[Item]) -> None:
        grams_of_items = []
        for item in items:
            text = question_text(item)
            self.keys.setdefault(item.key, name)
            self.texts.setdefault(normal_text(text), name)
            grams_of_items.append(set(ngrams(words(text))))
            self.items += 1
        seen = Counter(gram for grams in grams_of_items for gram in grams)
        for gram, count in seen.items():
            if count < BOILERPLATE_ITEMS and len(gram) >= SHORTEST_NGRAM:
                self._ngrams.setdefault(gram, name)
                self._lengths.add(len(gram))

    def check(self, key: str, texts: Sequence[str], *, free_text: bool) -> Hit | None:
        """The first thing in common, or None. ``texts`` are the prompt and the completion of one row."""
        if key in self.keys:
            return Hit(self.keys[key], "key", key)
        for text in texts:
            normal = normal_text(text)
            if normal in self.texts:
                return Hit(self.texts[normal], "text", normal)
            for form in expressions_in(text):
                if form in self.keys:
                    return Hit(self.keys[form], "expression", form)
            if free_text:
                row_words = normal.split()
                for length in self._lengths:
                    for gram in _windows(row_words, length):
                        if gram in self._ngrams:
                            return Hit(self._ngrams[gram], "n-gram", " ".join(gram))
        return None


def ngrams(row_words: Sequence[str], size: int = NGRAM) -> Iterator[tuple[str, ...]]:
    """All windows of ``size`` words; a shorter text is one window."""
    yield from _windows(row_words, min(size, len(row_words)))


def _windows(row_words: Sequence[str], size: int) -> Iterator[tuple[str, ...]]:
    if size:
        for start in range(len(row_words) - size + 1):
            yield tuple(row_words[start : start + size])


def _plain(side: str) -> str:
    """Drop leading zeros, which Python's parser refuses."""
    return re.sub(r"(?<![\d.])0+(?=\d)", "", side.strip().lower())


def _canonical(node: ast.expr, names: dict[str, str]) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return _number(node.value)
    if isinstance(node, ast.Name) and len(node.id) == 1:
        return names.setdefault(node.id, f"x{len(names)}" if names else "x")
    if isinstance(node, ast.UnaryOp | ast.BinOp):
        terms = list(_terms(node, 1, names))
        if len(terms) > 1 or terms[0].startswith("-"):
            return "(" + " ".join(sorted(terms)) + ")"
        return terms[0].removeprefix("+")
    raise ValueError(f"no arithmetic: {ast.dump(node)[:60]}")


def _terms(node: ast.expr, sign: int, names: dict[str, str]) -> Iterator[str]:
    """The signed terms of a sum."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        yield from _terms(node.left, sign, names)
        yield from _terms(node.right, sign if isinstance(node.op, ast.Add) else -sign, names)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
        yield from _terms(node.operand, sign if isinstance(node.op, ast.UAdd) else -sign, names)
    else:
        yield ("+" if sign > 0 else "-") + _product(node, names)


def _product(node: ast.expr, names: dict[str, str]) -> str:
    if not isinstance(node, ast.BinOp):
        return _canonical(node, names)
    if isinstance(node.op, ast.Mult):
        return "*".join(sorted(_factors(node, names)))
    symbol = {ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**"}.get(type(node.op))
    if symbol is None:
        raise ValueError("no arithmetic operation")
    return f"[{_canonical(node.left, names)}{symbol}{_canonical(node.right, names)}]"


def _factors(node: ast.expr, names: dict[str, str]) -> Iterator[str]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        yield from _factors(node.left, names)
        yield from _factors(node.right, names)
    else:
        yield _canonical(node, names)


def _number(value: float) -> str:
    """3 and 3.0 and 3.00 are the same number."""
    text = format(Decimal(str(value)).normalize(), "f")
    return text if len(text) <= 40 else repr(value)
