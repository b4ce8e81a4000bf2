"""Grammar-constrained replies and likelihoods, on a tiny random model."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import torch

from model.items import Message, user
from model.language_model import LanguageModel
from model.structured import MAX_ATTEMPTS, canonical_json, longest_json_bytes, propose_json, score_json

FORM = {
    "type": "object",
    "properties": {
        "block": {"enum": [256, 512, 1024, 4096]},
        "loop": {"enum": ["single", "looped"]},
        "count": {"type": "integer", "minimum": -3, "maximum": 120},
        "why": {"type": "string", "maxLength": 6},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["block", "loop", "count", "why", "tags"],
    "additionalProperties": False,
}
CHOICE = {
    "type": "object",
    "properties": {"n": {"enum": [1, 2, 12]}, "loop": {"enum": ["single", "looped"]}},
    "required": ["n", "loop"],
    "additionalProperties": False,
}
VALUES = [{"n": n, "loop": loop} for n, loop in itertools.product([1, 2, 12], ["single", "looped"])]
SHORT, LONG = [user("Go.")], [user("Give a schedule for a kernel that normalises rows.")]


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> LanguageModel:
    return LanguageModel.load(tiny_model)


@pytest.fixture(scope="module")
def merging(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> LanguageModel:
    """The same kind of model over a vocabulary with tokens of several bytes, so that spellings have many paths."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([canonical_json(value) for value in VALUES] * 3, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|im_end|>")
    fast.chat_template = AutoTokenizer.from_pretrained(tiny_model).chat_template
    folder = tmp_path_factory.mktemp("models") / "merging"
    fast.save_pretrained(folder)
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=len(fast) + 7, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, eos_token_id=fast.eos_token_id, pad_token_id=fast.eos_token_id, initializer_range=0.3,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return LanguageModel.load(folder)


@pytest.mark.parametrize("name", ["model", "merging"])
def test_every_reply_is_valid_without_a_limit(name: str, request: pytest.FixtureRequest) -> None:
    replies = propose_json(request.getfixturevalue(name), [SHORT, LONG] * 4, FORM, temperature=1.5, seed=11)
    assert len(replies) == 8
    for reply in replies:
        assert reply.failure == ""  # a second attempt may be needed: random bytes spell UTF-16 surrogates now and then
        jsonschema.validate(reply.value, FORM)
        assert json.loads(reply.text) == reply.value
        assert min(reply.text) >= " "
        assert 0 < reply.tokens_out <= longest_json_bytes(FORM) * reply.attempts
    assert len({reply.text for reply in replies}) > 4


def test_a_seed_repeats_and_another_differs(model: LanguageModel) -> None:
    first = propose_json(model, [SHORT, LONG], FORM, temperature=1.0, seed=5)
    assert propose_json(model, [SHORT, LONG], FORM, temperature=1.0, seed=5) == first
    assert propose_json(model, [SHORT, LONG], FORM, temperature=1.0, seed=6) != first


@pytest.mark.parametrize("name", ["model", "merging"])
def test_the_company_in_a_batch_changes_no_reply(name: str, request: pytest.FixtureRequest) -> None:
    model: LanguageModel = request.getfixturevalue(name)
    together = propose_json(model, [SHORT, LONG, SHORT], FORM, temperature=0.0, seed=0)
    alone = [propose_json(model, [each], FORM, temperature=0.0, seed=0)[0] for each in (SHORT, LONG, SHORT)]
    assert together == alone


def test_draws_follow_the_likelihoods(model: LanguageModel) -> None:
    """One token per byte: the grammar's path is the only one, so both functions speak of one distribution."""
    draws = 512
    drawn = Counter(reply.text for reply in propose_json(model, [SHORT] * draws, CHOICE, temperature=1.0, seed=2))
    scores, _tokens = score_json(model, SHORT, VALUES)
    for value, score in zip(VALUES, scores, strict=True):
        p = math.exp(score)
        assert abs(drawn[canonical_json(value)] - draws * p) <= 4 * math.sqrt(draws * p * (1 - p)) + 1


@pytest.mark.parametrize("name", ["model", "merging"])
def test_scores_equal_one_forward_pass_per_token(name: str, request: pytest.FixtureRequest) -> None:
    model: LanguageModel = request.getfixturevalue(name)
    scores, tokens = score_json(model, LONG, VALUES)
    assert scores == pytest.approx(_scores_one_by_one(model, LONG, VALUES), abs=1e-4)
    assert sum(map(math.exp, scores)) == pytest.approx(1.0)
    assert len(model.encode(LONG)) < tokens < len(model.encode(LONG)) + sum(len(canonical_json(v)) for v in VALUES)


def test_one_value_is_certain_and_equal_values_agree(model: LanguageModel) -> None:
    assert score_json(model, SHORT, VALUES[:1]) == ([0.0], 0)
    scores, _tokens = score_json(model, SHORT, [VALUES[0], VALUES[1], VALUES[0]])
    assert scores[0] == scores[2]


@pytest.mark.parametrize(("temperature", "attempts"), [(1.0, MAX_ATTEMPTS), (0.0, 1)])
def test_a_cut_reply_is_a_named_failure(model: LanguageModel, temperature: float, attempts: int) -> None:
    (reply,) = propose_json(model, [SHORT], FORM, temperature=temperature, seed=1, max_new_tokens=4)
    assert (reply.failure, reply.value, reply.attempts) == ("cut", {}, attempts)
    assert reply.tokens_out == 4 * attempts
    assert reply.tokens_in == len(model.encode(SHORT)) * attempts


def test_a_forced_value_fits_its_exact_length(model: LanguageModel) -> None:
    schema = {"type": "object", "properties": {"k": {"const": "abc"}}, "required": ["k"], "additionalProperties": False}
    (reply,) = propose_json(model, [SHORT], schema, temperature=1.0, seed=1, max_new_tokens=len('{"k": "abc"}'))
    assert (reply.value, reply.failure) == ({"k": "abc"}, "")


@pytest.mark.parametrize(
    "part",
    [
        {"type": "string"},
        {"type": "integer", "minimum": 0},
        {"type": "number", "minimum": 0, "maximum": 1},
        {"type": "array", "items": {"enum": [1]}},
        {"type": "object", "properties": {}},
        {"$ref": "#"},
        {},
    ],
)
def test_a_part_without_a_bound_is_refused_by_its_path(model: LanguageModel, part: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"x": part}, "required": ["x"], "additionalProperties": False}
    with pytest.raises(ValueError, match=r"\$\.x has no bound"):
        propose_json(model, [SHORT], schema, temperature=1.0, seed=0)


def test_the_bound_covers_the_longest_spelling() -> None:
    value = {"block": 4096, "loop": "single", "count": 120, "why": "\U0001f600" * 6, "tags": ["a", "b", "a"]}
    assert len(json.dumps(value).encode()) <= longest_json_bytes(FORM)


def _scores_one_by_one(model: LanguageModel, conversation: list[Message], values: list[dict[str, Any]]) -> list[float]:
    """The definition: at every token, the softmax over the continuations that some value still has."""
    prompt = model.encode(conversation)
    tails = [model.tokenizer.encode(canonical_json(value), add_special_tokens=False) for value in values]
    scores = []
    for tail in tails:
        total = 0.0
        for at, token in enumerate(tail):
            options = sorted({other[at] for other in tails if other[:at] == tail[:at]})
            with torch.inference_mode():
                logits = model.model(torch.tensor([prompt + tail[:at]])).logits[0, -1]
            total += float(torch.log_softmax(logits[options].double(), -1)[options.index(token)])
        scores.append(total)
    return scores
