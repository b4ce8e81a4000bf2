"""Batched replies against ``generate`` one by one, likelihoods against a plain forward pass."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from model.items import Message, Part, user
from model.language_model import LanguageModel, _sample, render
from workspace.errors import SurroundingsError, UserError

TEXTS = ["hi", "What is 1 + 2?", "Tell me a long story about a small fox.", "x", "Name a river.", "7 * 8"] * 2


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> LanguageModel:
    return LanguageModel.load(tiny_model, 1)


def _generate(model: LanguageModel, text: str, budget: int) -> list[int]:
    ids = torch.tensor([model.encode([user(text)])])
    with torch.no_grad():
        out = model.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=budget, do_sample=False, pad_token_id=2
        )
    found: list[int] = out[0, ids.shape[1] :].tolist()
    return found


def test_batched_greedy_replies_are_those_of_generate(model: LanguageModel) -> None:
    budgets = [4 + place for place in range(len(TEXTS))]
    seen: list[tuple[int, int]] = []
    replies = model.reply(
        [[user(text)] for text in TEXTS],
        max_new_tokens=budgets,
        on_progress=lambda done, total: seen.append((done, total)),
    )
    for text, budget, reply in zip(TEXTS, budgets, replies, strict=True):
        wanted = _generate(model, text, budget)
        assert reply.text == model.tokenizer.decode(wanted, skip_special_tokens=True).strip()
        assert reply.tokens_out == len(wanted)
        assert reply.tokens_in == len(model.encode([user(text)]))
    assert seen == [(done, len(TEXTS)) for done in range(1, len(TEXTS) + 1)]


def test_a_row_that_ends_early_stops_and_the_others_go_on(model: LanguageModel) -> None:
    """Whatever token the model says second is made an end token: rows leave the batch at different lengths."""
    end = _generate(model, "hi", 3)[1]
    model.end_ids = frozenset({2, end})
    try:
        replies = model.reply([[user(text)] for text in TEXTS], max_new_tokens=12)
        for text, reply in zip(TEXTS, replies, strict=True):
            wanted = _generate(model, text, 12)
            length = next((place + 1 for place, token in enumerate(wanted) if token in model.end_ids), 12)
            assert reply.tokens_out == length
        assert replies[0].tokens_out <= 2
    finally:
        model.end_ids = frozenset({2})


def test_sampling_depends_on_seed_and_row_and_not_on_the_batch(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversations = [[user(text)] for text in TEXTS]
    one = model.reply(conversations, max_new_tokens=8, temperature=1.0, seed=5)
    monkeypatch.setattr("model.language_model.MAX_ROWS", 3)
    two = model.reply(conversations, max_new_tokens=8, temperature=1.0, seed=5)
    assert [reply.text for reply in one] == [reply.text for reply in two]
    three = model.reply(conversations, max_new_tokens=8, temperature=1.0, seed=6)
    assert [reply.text for reply in one] != [reply.text for reply in three]


def test_samples_follow_the_softmax() -> None:
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0]).repeat(4000, 1)
    uniform = (torch.arange(4000) + 0.5) / 4000
    counts = torch.bincount(_sample(logits, 2.0, uniform), minlength=4) / 4000
    torch.testing.assert_close(counts, torch.softmax(logits[0] / 2.0, -1), atol=1e-3, rtol=0)


def test_likelihoods_are_those_of_a_plain_forward_pass(model: LanguageModel) -> None:
    prompts = [[user(text)] for text in TEXTS]
    tails = [f"answer {place}" * (1 + place % 3) for place in range(len(TEXTS))]
    for prompt, tail, (total, count) in zip(prompts, tails, model.log_likelihoods(prompts, tails), strict=True):
        head, end = model.encode(prompt), model.tokenizer.encode(tail, add_special_tokens=False)
        with torch.no_grad():
            logits = model.model(input_ids=torch.tensor([head + end])).logits[0]
        log_p = torch.log_softmax(logits[len(head) - 1 : -1], -1)
        assert total == pytest.approx(float(log_p[torch.arange(len(end)), torch.tensor(end)].sum()), rel=1e-4)
        assert count == len(end)


def test_token_nll_is_the_loss_of_transformers(model: LanguageModel) -> None:
    for text, (total, count) in zip(TEXTS[1:3], model.token_nll(TEXTS[1:3]), strict=True):
        ids = torch.tensor([model.tokenizer.encode(text, add_special_tokens=False)])
        with torch.no_grad():
            mean = float(model.model(input_ids=ids, labels=ids).loss)
        assert count == ids.shape[1] - 1
        assert total / count == pytest.approx(mean, rel=1e-4)


def test_no_default_system_prompt_but_a_given_one_is_kept(model: LanguageModel) -> None:
    assert render(model.tokenizer, [user("hi")]) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    given = [Message("system", (Part("text", "Be brief."),)), user("hi")]
    assert render(model.tokenizer, given).startswith("<|im_start|>system\nBe brief.<|im_end|>\n")


def test_wrong_budgets_and_missing_checkpoints_are_refused(model: LanguageModel, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="max_new_tokens"):
        model.reply([[user("hi")]], max_new_tokens=[1, 2])
    with pytest.raises(SurroundingsError, match="no checkpoint"):
        LanguageModel.load(tmp_path)
    assert model.reply([], max_new_tokens=3) == []
