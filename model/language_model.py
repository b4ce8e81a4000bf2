"""A local checkpoint that answers: batched replies, likelihoods and perplexity on a CPU or a GPU.

The decode loop is our own because an evaluation is mostly short answers: rows are sorted by length, left-padded, and
leave the batch as soon as they end, where ``generate`` would carry them to the last row's last token.  Greedy replies
equal ``generate``'s (tested).  Sampling draws one uniform number per row and token from (seed, row), so a reply depends
neither on the batch it shared nor on the order of work.

Shape suffixes: B rows, T positions, V vocabulary.
Not covered: images and files (only the text parts of a message are read), beam search, several devices.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from model.items import Message
from workspace.errors import SurroundingsError, UserError

MAX_ROWS = 96  # rows decoded together: more gain nothing on two cores, and the KV cache grows
MAX_PREFILL_TOKENS = 8192  # padded prompt positions of one batch


@dataclass(frozen=True)
class Reply:
    """One answer. ``tokens_out`` counts what was generated, the end token included."""

    text: str
    tokens_in: int
    tokens_out: int


def render(tokenizer: Any, conversation: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
    """A conversation through the model's chat template, without a default system prompt.

    Templates that insert a system prompt of their own do so only when the first message is no system message: an empty
    one is put there and its rendering cut off again (22 tokens saved per short question on SmolLM2).
    """
    messages = [{"role": message.role, "content": message.text} for message in conversation]
    if messages and messages[0]["role"] != "system":
        empty = [{"role": "system", "content": ""}]
        head: str = tokenizer.apply_chat_template(empty, tokenize=False)
        text: str = tokenizer.apply_chat_template(
            empty + messages, tokenize=False, add_generation_prompt=add_generation_prompt
        )
        if text.startswith(head):
            return text[len(head) :]
    plain: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=add_generation_prompt)
    return plain


class LanguageModel:
    """A causal language model from a ``transformers`` checkpoint directory, in fp32 on a CPU."""

    def __init__(self, model: Any, tokenizer: Any, directory: Path) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.directory = directory
        ends = model.generation_config.eos_token_id
        if ends is None:
            ends = tokenizer.eos_token_id
        self.end_ids = frozenset([ends] if isinstance(ends, int) else ends or ())

    @classmethod
    def load(cls, directory: Path, threads: int | None = None) -> LanguageModel:
        """Read a checkpoint; never from a hub. ``threads`` bounds the CPU threads of this process."""
        os.environ["HF_HUB_OFFLINE"] = "1"
        if not (directory / "config.json").is_file():
            raise SurroundingsError(
                f"no checkpoint at {directory}", remedy="nightshift model list names the checkpoints of this lab"
            )
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging as transformers_logging

        transformers_logging.disable_progress_bar()
        if threads is not None:
            torch.set_num_threads(threads)
        try:
            model = AutoModelForCausalLM.from_pretrained(
                directory, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True
            )
            tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
        except (OSError, ValueError) as error:
            raise SurroundingsError(
                f"the checkpoint at {directory} cannot be read: {error}", remedy="restore it or import it again"
            ) from error
        model.eval()
        return cls(model, tokenizer, directory)

    def encode(self, conversation: Sequence[Message]) -> list[int]:
        """Token ids of a conversation, ready for the assistant's turn."""
        ids: list[int] = self.tokenizer.encode(render(self.tokenizer, conversation), add_special_tokens=False)
        return ids

    @torch.inference_mode()
    def reply(
        self,
        conversations: Sequence[Sequence[Message]],
        *,
        max_new_tokens: int | Sequence[int],
        temperature: float = 0.0,
        seed: int = 0,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> list[Reply]:
        """Answer every conversation, in the order given.

        Greedy at ``temperature`` 0, else sampled from the whole distribution. ``on_progress(done, total)`` is called
        as rows end.
        """
        budgets = [max_new_tokens] * len(conversations) if isinstance(max_new_tokens, int) else list(max_new_tokens)
        if len(budgets) != len(conversations) or min(budgets, default=1) < 1:
            raise UserError(
                "one positive budget per conversation", field="max_new_tokens", value=max_new_tokens, allowed=">= 1"
            )
        prompts = [self.encode(conversation) for conversation in conversations]
        order = sorted(range(len(prompts)), key=lambda row: (len(prompts[row]), budgets[row], row), reverse=True)
        replies: list[Reply | None] = [None] * len(prompts)
        done = 0
        for rows in _batches(order, [len(prompt) for prompt in prompts]):
            for row, tokens in self._decode(rows, prompts, budgets, temperature, seed):
                text = self.tokenizer.decode(tokens, skip_special_tokens=True).strip()
                replies[row] = Reply(text, len(prompts[row]), len(tokens))
                done += 1
                if on_progress is not None:
                    on_progress(done, len(prompts))
        return [reply for reply in replies if reply is not None]

    def _decode(
        self, rows: list[int], prompts: list[list[int]], budgets: list[int], temperature: float, seed: int
    ) -> Iterator[tuple[int, list[int]]]:
        """Decode one batch; yields (row, generated ids) as each row ends."""
        from transformers import DynamicCache

        device = self.model.device
        width = max(len(prompts[row]) for row in rows)
        ids_BT = torch.zeros(len(rows), width, dtype=torch.long)
        mask_BT = torch.zeros(len(rows), width, dtype=torch.long)
        for place, row in enumerate(rows):
            ids_BT[place, width - len(prompts[row]) :] = torch.tensor(prompts[row])
            mask_BT[place, width - len(prompts[row]) :] = 1
        ids_BT, mask_BT = ids_BT.to(device), mask_BT.to(device)
        position_B = mask_BT.sum(1)
        cache = DynamicCache(config=self.model.config)
        generators = {row: np.random.default_rng([seed, row]) for row in rows} if temperature > 0 else {}
        alive = list(rows)
        out: dict[int, list[int]] = {row: [] for row in rows}
        position_ids = (mask_BT.cumsum(1) - 1).clamp(min=0)
        logits_BV = self._next_logits(ids_BT, mask_BT, position_ids, cache)
        while True:
            if temperature > 0:
                uniform = torch.tensor([generators[row].random() for row in alive], device=device)
                next_B = _sample(logits_BV, temperature, uniform)
            else:
                next_B = logits_BV.argmax(-1)
            keep: list[int] = []
            for place, (row, token) in enumerate(zip(alive, next_B.tolist(), strict=True)):
                out[row].append(token)
                if token in self.end_ids or len(out[row]) >= budgets[row]:
                    yield row, out[row]
                else:
                    keep.append(place)
            if not keep:
                return
            if len(keep) < len(alive):
                kept = torch.tensor(keep, device=device)
                cache.batch_select_indices(kept)
                next_B, mask_BT, position_B = next_B[kept], mask_BT[kept], position_B[kept]
                alive = [alive[place] for place in keep]
            mask_BT = torch.cat([mask_BT, mask_BT.new_ones(len(alive), 1)], 1)
            logits_BV = self._next_logits(next_B[:, None], mask_BT, position_B[:, None], cache)
            position_B = position_B + 1

    def _next_logits(self, ids_BT: torch.Tensor, mask_BT: torch.Tensor, position_ids: torch.Tensor, cache: Any) -> Any:
        """Logits [B, V] after the last position; only that position meets the (large) output matrix."""
        hidden_BTD = self.model.base_model(
            input_ids=ids_BT, attention_mask=mask_BT, position_ids=position_ids, cache=cache, use_cache=True
        ).last_hidden_state
        return _project(hidden_BTD[:, -1], self.model.get_output_embeddings())

    @torch.inference_mode()
    def log_likelihoods(
        self, prompts: Sequence[Sequence[Message]], continuations: Sequence[str]
    ) -> list[tuple[float, int]]:
        """For each pair, the sum of log p(continuation | prompt) in nats and the number of its tokens.

        The continuation is what the assistant would say; the end token is not scored.
        """
        heads = [self.encode(prompt) for prompt in prompts]
        tails = [self.tokenizer.encode(text, add_special_tokens=False) for text in continuations]
        return self._score([(head, tail) for head, tail in zip(heads, tails, strict=True)])

    @torch.inference_mode()
    def token_nll(self, texts: Sequence[str]) -> list[tuple[float, int]]:
        """For each text, the sum of -log p in nats over its tokens, and their number.

        The first token has no context and is not scored. exp(sum / number) is the perplexity.
        """
        encoded = [self.tokenizer.encode(text, add_special_tokens=False) for text in texts]
        return [(-total, count) for total, count in self._score([(ids[:1], ids[1:]) for ids in encoded])]

    def _score(self, pairs: list[tuple[list[int], list[int]]]) -> list[tuple[float, int]]:
        """Sum of log p over the tail given the head, and the tail's length, for each (head, tail)."""
        lengths = [len(head) + len(tail) for head, tail in pairs]
        order = sorted(range(len(pairs)), key=lambda row: lengths[row], reverse=True)
        scores: list[tuple[float, int]] = [(0.0, 0)] * len(pairs)
        for rows in _batches([row for row in order if pairs[row][1]], lengths, 2048):
            width = max(lengths[row] for row in rows)
            ids_BT = torch.zeros(len(rows), width, dtype=torch.long)  # right-padded: causal, so the pad is never seen
            for place, row in enumerate(rows):
                ids_BT[place, : lengths[row]] = torch.tensor(pairs[row][0] + pairs[row][1])
            hidden = self.model.base_model(input_ids=ids_BT.to(self.model.device), use_cache=False).last_hidden_state
            head_weight = self.model.get_output_embeddings()
            for place, row in enumerate(rows):
                start, end = len(pairs[row][0]) - 1, lengths[row] - 1
                logits = _project(hidden[place, start:end], head_weight).float()
                wanted = ids_BT[place, start + 1 : end + 1].to(logits.device)
                nll = torch.nn.functional.cross_entropy(logits, wanted, reduction="none").double().sum()
                scores[row] = (-float(nll), end - start)
        return scores


def _project(hidden_ND: torch.Tensor, head: torch.nn.Linear) -> torch.Tensor:
    """The output projection. On a CPU through oneDNN: twice as fast as the default for few rows and 49,152 columns."""
    if hidden_ND.device.type == "cpu" and torch.backends.mkldnn.is_available() and not torch.is_grad_enabled():
        projected: torch.Tensor = torch.ops.mkldnn._linear_pointwise(  # noqa: SLF001  has no public name
            hidden_ND.contiguous(), head.weight, head.bias, "none", [], ""
        )
        return projected
    return torch.nn.functional.linear(hidden_ND, head.weight, head.bias)


def _sample(logits_BV: torch.Tensor, temperature: float, uniform_B: torch.Tensor) -> torch.Tensor:
    """Inverse-CDF sampling: one uniform number in [0, 1) per row."""
    cumulative = torch.softmax(logits_BV.double() / temperature, -1).cumsum(-1)
    target = uniform_B.double()[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, target, right=True).squeeze(-1).clamp(max=logits_BV.shape[-1] - 1)


def _batches(order: Sequence[int], lengths: Sequence[int], max_tokens: int = MAX_PREFILL_TOKENS) -> Iterator[list[int]]:
    """Cut rows that are sorted by falling length into batches bounded in rows and in padded positions."""
    batch: list[int] = []
    for row in order:
        if batch and (len(batch) >= MAX_ROWS or (len(batch) + 1) * lengths[batch[0]] > max_tokens):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch
