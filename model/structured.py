"""JSON replies under a grammar, and the likelihood of given JSON values: how a small model fills in a form.

``propose_json`` decodes with xgrammar: at every step only tokens that the schema allows can be drawn, text that it
forces (keys, quotes) is appended without asking the model, and rows with the same conversation share one prefill.
``score_json`` asks instead how likely each of a finite list of values is: the values form a tree of tokens, whose inner
nodes go through the model once, in one pass with a tree-shaped attention mask.

A schema must be bounded (enums, ranges, ``maxLength``, ``maxItems``), so that a model that never stops still ends.

Shape suffixes: B rows, T positions, D hidden width, N tree nodes.
Not covered: ``$ref``, free floating-point numbers, optional order of keys, cancelling a batch that is under way.
"""

from __future__ import annotations

import inspect
import json
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import jsonschema  # type: ignore[import-untyped]
import numpy as np
import torch

from model.items import Message
from model.language_model import LanguageModel

MAX_ATTEMPTS = 3  # a reply that was cut is drawn again with another seed, this often in all
MAX_ROWS = 64  # rows decoded together
FEW_TOKENS = 4096  # with so few allowed tokens, only their rows of the output matrix are used
_ESCAPED_BYTES = 12  # the longest JSON spelling of one character: a surrogate pair of \uXXXX

Failure = Literal["", "cut", "invalid"]


@dataclass(frozen=True)
class StructuredReply:
    """One reply. ``value`` holds only when ``failure`` is "".

    ``failure`` is "cut" (``max_new_tokens`` ended it) or "invalid" (the schema says more than the grammar can).
    Token counts are sums over the attempts; ``tokens_out`` includes the text that the grammar forced.
    """

    value: dict[str, Any]
    text: str
    tokens_in: int
    tokens_out: int
    attempts: int = 1
    failure: Failure = ""


def canonical_json(value: Mapping[str, Any]) -> str:
    """The one spelling that the grammar allows: keys in the schema's order, ``", "`` and ``": "``."""
    return json.dumps(value, ensure_ascii=False)


def longest_json_bytes(schema: Mapping[str, Any], path: str = "$") -> int:
    """An upper bound of the bytes, hence of the tokens, of any reply under ``schema``.

    Raises ValueError naming the part of the schema that has no bound.
    """
    if "const" in schema:
        return len(json.dumps(schema["const"]).encode())
    if "enum" in schema:
        return max(len(json.dumps(choice).encode()) for choice in schema["enum"])
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return max(longest_json_bytes(part, f"{path}.{union}[{at}]") for at, part in enumerate(schema[union]))
    kind = schema.get("type")
    if kind in ("boolean", "null"):
        return len("false")
    if kind == "integer" and {"minimum", "maximum"} <= schema.keys():
        return max(len(str(schema["minimum"])), len(str(schema["maximum"])))
    if kind == "string" and "maxLength" in schema:
        return 2 + _ESCAPED_BYTES * int(schema["maxLength"])
    if kind == "array" and "maxItems" in schema and "items" in schema:
        return 2 + int(schema["maxItems"]) * (2 + longest_json_bytes(schema["items"], f"{path}[]"))
    if kind == "object" and schema.get("additionalProperties") is False:
        properties = schema.get("properties", {}).items()
        return 2 + sum(
            4 + len(json.dumps(name).encode()) + longest_json_bytes(part, f"{path}.{name}") for name, part in properties
        )
    raise ValueError(
        f"schema part {path} has no bound: use enum, const, integer with minimum and maximum, string with maxLength, "
        f"array with maxItems, or object with additionalProperties false (found {dict(schema)!r})"
    )


def propose_json(
    model: LanguageModel,
    conversations: Sequence[Sequence[Message]],
    schema: Mapping[str, Any],
    *,
    temperature: float,
    seed: int,
    max_new_tokens: int | None = None,
) -> list[StructuredReply]:
    """One JSON object per conversation, in their order, each valid against ``schema`` or a named failure.

    Greedy at ``temperature`` 0. ``max_new_tokens`` None means the schema's own bound, within which every reply ends;
    replies cut by a smaller one are drawn again, ``MAX_ATTEMPTS`` times in all (once when greedy).
    Raises ValueError for an unbounded or invalid schema.
    """
    bound = longest_json_bytes(schema) + 1
    budget = bound if max_new_tokens is None else min(bound, max_new_tokens)
    if budget < 1 or temperature < 0:
        raise ValueError(f"max_new_tokens {max_new_tokens} must be >= 1 and temperature {temperature} >= 0")
    jsonschema.Draft202012Validator.check_schema(dict(schema))
    grammar = _compile(model, schema)
    prompts = [tuple(model.encode(conversation)) for conversation in conversations]
    replies: dict[int, StructuredReply] = {}
    waiting = list(range(len(prompts)))
    for attempt in range(1, (MAX_ATTEMPTS if temperature > 0 else 1) + 1):
        for start in range(0, len(waiting), MAX_ROWS):
            batch = waiting[start : start + MAX_ROWS]
            rows = [_Row(row, prompts[row], np.random.default_rng([seed, row, attempt])) for row in batch]
            _decode(model, grammar, rows, budget, temperature)
            for row in rows:
                reply = _read(model, row, schema, attempt)
                before = replies.get(row.index)
                if before is not None:
                    reply = replace(
                        reply,
                        tokens_in=before.tokens_in + reply.tokens_in,
                        tokens_out=before.tokens_out + reply.tokens_out,
                    )
                replies[row.index] = reply
        waiting = [row for row in waiting if replies[row].failure]
        if not waiting:
            break
    return [replies[row] for row in range(len(prompts))]


@torch.inference_mode()
def score_json(
    model: LanguageModel, conversation: Sequence[Message], values: Sequence[Mapping[str, Any]]
) -> tuple[list[float], int]:
    """log p(value | conversation, the reply is one of ``values``), in nats, for each; and the tokens this took.

    At every token where the canonical spellings of the values part, the model's distribution is restricted to the
    continuations that are left; the rest is forced, as it is under a grammar.  So the probabilities of distinct values
    sum to one, and the length of a spelling does not count against it.  Equal values have equal scores.
    """
    prompt = model.encode(conversation)
    tails = [model.tokenizer.encode(canonical_json(value), add_special_tokens=False) for value in values]
    tree = _Tree.of(tails)
    total_N, tokens = _tree_log_probabilities(model, prompt, tree)
    return [total_N[tree.path(tail)[-1]] for tail in tails], tokens


# --- decoding ---------------------------------------------------------------------------------------------------------


@dataclass
class _Row:
    index: int
    prompt: tuple[int, ...]
    generator: np.random.Generator
    out: list[int] = field(default_factory=list)
    complete: bool = False


@dataclass(frozen=True)
class _Grammars:
    """A model's compiler of grammars, and which of its tokens (V) hold no control character.

    JSON on one line needs none, and xgrammar lets them into strings of bounded length, where JSON forbids them.
    """

    compiler: Any
    plain: torch.Tensor


_GRAMMARS: weakref.WeakKeyDictionary[LanguageModel, _Grammars] = weakref.WeakKeyDictionary()


def _grammars(model: LanguageModel) -> _Grammars:
    """Made once per model, because it reads the whole vocabulary."""
    import xgrammar

    found = _GRAMMARS.get(model)
    if found is None:
        info = xgrammar.TokenizerInfo.from_huggingface(
            model.tokenizer, vocab_size=model.model.config.vocab_size, stop_token_ids=sorted(model.end_ids)
        )
        plain = torch.tensor([not token or min(token) >= ord(" ") for token in info.decoded_vocab])
        found = _GRAMMARS[model] = _Grammars(xgrammar.GrammarCompiler(info, max_threads=1), plain)
    return found


def _compile(model: LanguageModel, schema: Mapping[str, Any]) -> Any:
    """The schema as a grammar over the model's tokens."""
    try:
        return _grammars(model).compiler.compile_json_schema(json.dumps(schema), any_whitespace=False)
    except RuntimeError as error:
        raise ValueError(f"the schema cannot be turned into a grammar: {error}") from error


def _prefill(model: LanguageModel, rows: Sequence[_Row]) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """Last hidden state (B, D), attention mask (B, T) and cache of all rows; equal prompts are computed once."""
    from transformers import DynamicCache

    distinct = sorted({row.prompt for row in rows})
    ids_BT, mask_BT = _pad_left(distinct)
    device = model.model.device
    ids_BT, mask_BT = ids_BT.to(device), mask_BT.to(device)
    cache = DynamicCache(config=model.model.config)
    hidden_BD = _forward(model, ids_BT, mask_BT, cache)
    place_B = torch.tensor([distinct.index(row.prompt) for row in rows], device=device)
    cache.batch_select_indices(place_B)
    return hidden_BD[place_B], mask_BT[place_B], cache


def _forward(model: LanguageModel, ids_BT: torch.Tensor, mask_BT: torch.Tensor, cache: Any) -> torch.Tensor:
    """Hidden state (B, D) after the last of the new positions; ``mask_BT`` also covers what is in the cache."""
    base = model.model.base_model
    # the argument's name changed within transformers 5
    keyword = "cache" if "cache" in inspect.signature(type(base).forward).parameters else "past_key_values"
    position_BT = (mask_BT.cumsum(1) - 1)[:, -ids_BT.shape[1] :].clamp(min=0)
    hidden_BTD = base(
        input_ids=ids_BT, attention_mask=mask_BT, position_ids=position_BT, use_cache=True, **{keyword: cache}
    ).last_hidden_state
    return hidden_BTD[:, -1]  # type: ignore[no-any-return]


@torch.inference_mode()
def _decode(model: LanguageModel, grammar: Any, rows: Sequence[_Row], budget: int, temperature: float) -> None:
    """Fill ``out`` and ``complete`` of every row. All rows advance together; a row that ends leaves the batch."""
    import xgrammar

    matchers = {row.index: xgrammar.GrammarMatcher(grammar) for row in rows}
    alive = list(rows)
    bitmask = xgrammar.allocate_token_bitmask(len(alive), model.model.config.vocab_size)
    hidden_BD, mask_BT, cache = _prefill(model, rows)
    while True:
        chunks: list[list[int]] = []
        keep: list[int] = []
        for place, row in enumerate(alive):
            matcher = matchers[row.index]
            matcher.fill_next_token_bitmask(bitmask, place)
            token = _draw(model, hidden_BD[place], bitmask[place], temperature, row.generator)
            chunk = _advance(matcher, token, budget - len(row.out))
            row.out += chunk
            row.complete = matcher.is_completed()  # an object is over at its brace: the end token need not be asked for
            if not row.complete and len(row.out) < budget:
                keep.append(place)
                chunks.append(chunk)
        if not keep:
            return
        if len(keep) < len(alive):
            kept = torch.tensor(keep, device=mask_BT.device)
            cache.batch_select_indices(kept)
            mask_BT = mask_BT[kept]
            alive = [alive[place] for place in keep]
        ids_BT, new_BT = _pad_left(chunks)
        mask_BT = torch.cat([mask_BT, new_BT.to(mask_BT.device)], 1)
        hidden_BD = _forward(model, ids_BT.to(mask_BT.device), mask_BT, cache)


def _pad_left(chunks: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids (B, T) and their mask; padding is never attended to, so chunks of any lengths go together."""
    width = max(map(len, chunks))
    ids_BT = torch.zeros(len(chunks), width, dtype=torch.long)
    mask_BT = torch.zeros(len(chunks), width, dtype=torch.long)
    for place, chunk in enumerate(chunks):
        ids_BT[place, width - len(chunk) :] = torch.tensor(chunk)
        mask_BT[place, width - len(chunk) :] = 1
    return ids_BT, mask_BT


def _logits(model: LanguageModel, hidden_D: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Logits of ``tokens`` alone, fp64 on the CPU, in their order."""
    head = model.model.get_output_embeddings()
    tokens = tokens.to(hidden_D.device)
    if len(tokens) > FEW_TOKENS:
        return head(hidden_D)[tokens].double().cpu()  # type: ignore[no-any-return]
    bias = None if head.bias is None else head.bias[tokens]
    return torch.nn.functional.linear(hidden_D, head.weight[tokens], bias).double().cpu()


def _draw(
    model: LanguageModel,
    hidden_D: torch.Tensor,
    bitmask: torch.Tensor,
    temperature: float,
    generator: np.random.Generator,
) -> int:
    """One token among those whose bit is set: bit v % 32 of word v // 32."""
    uniform = float(generator.random())  # drawn even where one token is left, so that later draws do not shift
    bits = (bitmask[:, None] >> torch.arange(32, dtype=torch.int32)) & 1
    plain = _grammars(model).plain
    allowed = (bits.reshape(-1)[: len(plain)].bool() & plain).nonzero().squeeze(-1)
    if len(allowed) == 1:
        return int(allowed[0])
    logits = _logits(model, hidden_D, allowed)
    if temperature == 0:
        return int(allowed[logits.argmax()])
    cumulative = torch.softmax(logits / temperature, -1).cumsum(-1)
    place = int(torch.searchsorted(cumulative, uniform * cumulative[-1], right=True))
    return int(allowed[min(place, len(allowed) - 1)])


def _advance(matcher: Any, token: int, room: int) -> list[int]:
    """The drawn token and the tokens that the grammar now forces, at most ``room`` of them."""
    taken = [token]
    accepted = matcher.accept_token(token)
    assert accepted, f"the grammar refused token {token}, which its own mask allowed"
    for forced in matcher.find_jump_forward_tokens():
        if len(taken) == room or not matcher.accept_token(forced):
            break
        taken.append(forced)
    return taken


def _read(model: LanguageModel, row: _Row, schema: Mapping[str, Any], attempt: int) -> StructuredReply:
    text: str = model.tokenizer.decode(row.out, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    value: dict[str, Any] = {}
    failure: Failure = "" if row.complete else "cut"
    if row.complete:
        try:
            value = json.loads(text)
            jsonschema.validate(value, dict(schema))
        except (ValueError, jsonschema.ValidationError):
            value, failure = {}, "invalid"
    return StructuredReply(value, text, len(row.prompt), len(row.out), attempt, failure)


# --- scoring ----------------------------------------------------------------------------------------------------------


@dataclass
class _Tree:
    """Token sequences that share their beginnings. Node 0 is the end of the prompt."""

    token: list[int] = field(default_factory=lambda: [-1])
    parent: list[int] = field(default_factory=lambda: [-1])
    depth: list[int] = field(default_factory=lambda: [0])
    children: list[dict[int, int]] = field(default_factory=lambda: [{}])

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]]) -> _Tree:
        tree = cls()
        for sequence in sequences:
            node = 0
            for token in sequence:
                found = tree.children[node].get(token)
                if found is None:
                    found = len(tree.token)
                    tree.token.append(token)
                    tree.parent.append(node)
                    tree.depth.append(tree.depth[node] + 1)
                    tree.children.append({})
                    tree.children[node][token] = found
                node = found
        return tree

    def path(self, sequence: Sequence[int]) -> list[int]:
        """The nodes of a sequence, node 0 first."""
        nodes = [0]
        for token in sequence:
            nodes.append(self.children[nodes[-1]][token])
        return nodes

    def ancestors(self, node: int) -> Iterator[int]:
        while node > 0:
            yield node
            node = self.parent[node]


def _tree_log_probabilities(model: LanguageModel, prompt: Sequence[int], tree: _Tree) -> tuple[list[float], int]:
    """Of every node: log p given that the reply is in the tree, summed over the forks above it. And the tokens used."""
    forks = [node for node, children in enumerate(tree.children) if len(children) > 1]
    total_N = [0.0] * len(tree.token)
    if not forks:
        return total_N, 0
    needed = sorted({node for fork in forks for node in tree.ancestors(fork)})  # the rest cannot change a choice
    place = {node: len(prompt) + at for at, node in enumerate(needed)}
    width = len(prompt) + len(needed)
    sees_TT = torch.zeros(width, width, dtype=torch.bool)
    sees_TT[:, : len(prompt)] = True
    sees_TT[: len(prompt), : len(prompt)].tril_()
    for node in needed:
        sees_TT[place[node], [place[ancestor] for ancestor in tree.ancestors(node)]] = True
    device, dtype = model.model.device, model.model.dtype
    mask = torch.zeros(width, width, dtype=dtype).masked_fill_(~sees_TT, torch.finfo(dtype).min)[None, None]
    hidden = model.model.base_model(
        input_ids=torch.tensor([[*prompt, *(tree.token[node] for node in needed)]], device=device),
        attention_mask=mask.to(device),
        position_ids=torch.tensor(
            [[*range(len(prompt)), *(len(prompt) - 1 + tree.depth[node] for node in needed)]], device=device
        ),
        use_cache=False,
    ).last_hidden_state[0]
    at_fork = [place[fork] if fork else len(prompt) - 1 for fork in forks]
    step_N = [0.0] * len(tree.token)
    for fork, position in zip(forks, at_fork, strict=True):
        tokens = list(tree.children[fork])
        restricted = torch.log_softmax(_logits(model, hidden[position], torch.tensor(tokens)), -1).tolist()
        for token, log_probability in zip(tokens, restricted, strict=True):
            step_N[tree.children[fork][token]] = log_probability
    for node in range(1, len(tree.token)):  # a parent's number is always smaller
        total_N[node] = total_N[tree.parent[node]] + step_N[node]
    return total_N, width
