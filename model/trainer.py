"""Trains one successor. Runs inside a sandbox: ``python -m model.trainer SPEC.json``.

Input, all read-only: the parent's checkpoint directory and Parquet files with the columns of ``model/dataset.py``
(``prompt``, ``completion``, ``source``, ``key``, ``family``).  Output, all under ``out_dir``: ``state.pt`` (to resume),
``successor/`` (a stock ``transformers`` checkpoint in the parent's layout) and ``train.json``.  One JSON line per step
goes to stdout.  A run that was killed continues bit-exactly from its last checkpoint when it is started again.

The loss of a step:

    CE(completion tokens of the target rows) + kl_weight * mean KL(parent || successor)(positions of the anchor rows)

Anchor rows are the parent's own replies to many kinds of prompt, and prose.  The KL runs over the full vocabulary and
is exactly zero at the start, so that nothing moves which the target does not move; cross-entropy on samples would teach
their noise as well.  The parent is the same network with the adapter switched off.

With ``train_s`` the number of steps is fixed by the pace of the first three, which are part of the warm-up, so that
the schedule still ends where the run ends.

Not covered: several devices, gradient accumulation, fp16/bf16.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import pyarrow.parquet as pq
import torch
from torch.nn import functional

from model.items import Message, Part
from model.language_model import render
from model.recipe import Recipe
from workspace.errors import UserError

PACE_STEPS = 3  # the first ones, by whose pace the others are counted when the time is limited
TARGET_MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
SOURCES = ("self", "gold", "replay", "prose")


@dataclass(frozen=True)
class Spec:
    """What a run is given. Paths are those inside the sandbox."""

    model_dir: Path
    data: tuple[Path, ...]
    out_dir: Path
    recipe: Recipe
    seed: int
    threads: int
    parent_sha256: str  # of the parent's weights, as the ledger knows them; verified here
    train_s: float | None = None  # seconds for all steps: what does not fit at the pace of the first ones is left out

    @staticmethod
    def read(path: Path) -> Spec:
        raw = json.loads(path.read_text())
        return Spec(
            Path(raw["model_dir"]), tuple(Path(name) for name in raw["data"]), Path(raw["out_dir"]),
            Recipe.from_dict(raw["recipe"]), int(raw["seed"]), int(raw["threads"]), str(raw["parent_sha256"]),
            raw.get("train_s"),
        )  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One encoded example: token ids and how many of the first of them are context without a label."""

    ids: tuple[int, ...]
    context: int


def encode_row(tokenizer: Any, prompt: str, completion: str, end_id: int, max_tokens: int, *, closed: bool) -> Row:
    """Encode one example. The end token is part of the completion when ``closed`` (a finished reply).

    Raises ValueError when no label is left or when the row is too long: both would train on something else, silently.
    """
    messages = [
        Message(row["role"], tuple(Part(**part) for part in row["parts"])) for row in json.loads(prompt or "[]")
    ]
    head = tokenizer.encode(render(tokenizer, messages), add_special_tokens=False) if messages else []
    tail = tokenizer.encode(completion, add_special_tokens=False)
    if closed:
        tail = [*tail, end_id]
    context = len(head) if messages else 1  # without a prompt the first token has nothing to be predicted from
    ids = (*head, *tail)
    if len(ids) <= context:
        raise ValueError(f"no label is left: completion {completion!r} of prompt {prompt[:200]!r}")
    if len(ids) > max_tokens:
        raise ValueError(f"{len(ids)} tokens, more than max_tokens = {max_tokens}: {completion[:80]!r}")
    return Row(ids, context)


def load_rows(paths: tuple[Path, ...], tokenizer: Any, end_id: int, max_tokens: int) -> dict[str, list[Row]]:
    """Encoded rows by use: "target", "replay", "prose"."""
    rows: dict[str, list[Row]] = {"target": [], "replay": [], "prose": []}
    for path in paths:
        table = pq.read_table(path).to_pylist()
        for number, record in enumerate(table):
            if record["source"] not in SOURCES:
                raise ValueError(f"{path.name} row {number}: unknown source {record['source']!r}")
            use = "target" if record["source"] in ("self", "gold") else record["source"]
            # A reply that was cut at its token budget does not end where it stops, and prose has no end at all.
            closed = use != "prose" and bool(record.get("complete", use == "target"))
            row = encode_row(tokenizer, record["prompt"], record["completion"], end_id, max_tokens, closed=closed)
            rows[use].append(row)
    return rows


def pick(rows: list[Row], count: int, step: int, seed: int) -> list[Row]:
    """``count`` rows of step ``step``: cuts of endless reshuffled passes, a function of (seed, step) only."""
    picked = []
    for place in range(step * count, (step + 1) * count):
        turn, index = divmod(place, len(rows))
        order = list(range(len(rows)))
        random.Random(f"{seed}/{turn}").shuffle(order)
        picked.append(rows[order[index]])
    return picked


def labelled_hidden(model: Any, rows: list[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states [N, D] at the positions that predict a label, and the labels [N]; N labels over all rows."""
    width = max(len(row.ids) for row in rows)
    ids_BT = torch.zeros(len(rows), width, dtype=torch.long)  # right-padded: causal, so the pad is never seen
    wanted_BT = torch.zeros(len(rows), width, dtype=torch.bool)
    for place, row in enumerate(rows):
        ids_BT[place, : len(row.ids)] = torch.tensor(row.ids)
        wanted_BT[place, row.context - 1 : len(row.ids) - 1] = True
    hidden_BTD = model(input_ids=ids_BT, use_cache=False).last_hidden_state
    labels_BT = torch.cat([ids_BT[:, 1:], ids_BT[:, :1]], 1)
    return hidden_BTD[wanted_BT], labels_BT[wanted_BT]


def anchor_kl(body: Any, head: Any, adapter: Any, rows: list[Row]) -> torch.Tensor:
    """Mean over labelled positions of KL(parent || successor), in nats, over the full vocabulary."""
    with torch.no_grad(), adapter.disable_adapter():
        parent = functional.log_softmax(head(labelled_hidden(body, rows)[0]), -1)
    successor = functional.log_softmax(head(labelled_hidden(body, rows)[0]), -1)
    return functional.kl_div(successor, parent, reduction="batchmean", log_target=True)


def steps_in(recipe: Recipe, left_s: float, steps_s: Sequence[float]) -> int:
    """How many of the recipe's steps there will be: those that took ``steps_s``, and what fits into ``left_s`` more.

    Never fewer than its ``min_steps``. The pace is the median, because the first step is slow.
    """
    fit = len(steps_s) + int(left_s / statistics.median(steps_s))
    return max(min(recipe.steps, recipe.min_steps), min(recipe.steps, fit))


def learning_rate(recipe: Recipe, step: int, steps: int) -> float:
    """Linear warm-up, then a cosine to a tenth at the last of ``steps``."""
    if step < recipe.warmup_steps:
        return recipe.learning_rate * (step + 1) / recipe.warmup_steps
    done = (step - recipe.warmup_steps) / max(1, steps - recipe.warmup_steps)
    return recipe.learning_rate * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done)))


def save_atomically(path: Path, state: dict[str, Any]) -> None:
    """Write aside, fsync, rename: a reader sees the old state or the new one, whole."""
    aside = path.with_suffix(".aside")
    with aside.open("wb") as stream:
        torch.save(state, stream)
        stream.flush()
        os.fsync(stream.fileno())
    aside.replace(path)


class Run:
    """One training run: model, optimizer, rows, and the step it has reached."""

    def __init__(self, spec: Spec) -> None:
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.spec, recipe = spec, spec.recipe
        torch.set_num_threads(spec.threads)
        torch.manual_seed(spec.seed)
        self.tokenizer = AutoTokenizer.from_pretrained(spec.model_dir, local_files_only=True)
        model = AutoModelForCausalLM.from_pretrained(spec.model_dir, dtype=torch.float32, local_files_only=True)
        ends = model.generation_config.eos_token_id or self.tokenizer.eos_token_id
        end_id = ends if isinstance(ends, int) else ends[0]
        self.rows = load_rows(spec.data, self.tokenizer, end_id, recipe.max_tokens)
        self.anchors = [("replay", recipe.replay_rows), ("prose", recipe.prose_rows)]
        self.anchors = [(use, count) for use, count in self.anchors if count]
        for use, count in [("target", recipe.target_rows), *self.anchors]:
            if not self.rows[use]:
                raise ValueError(f"the recipe wants {count} {use} rows a step and the data has none")
        if recipe.method == "lora":
            layers = list(range(recipe.first_layer, model.config.num_hidden_layers))
            config = LoraConfig(
                r=recipe.lora_rank, lora_alpha=recipe.lora_alpha, lora_dropout=0.0, bias="none", task_type="CAUSAL_LM",
                target_modules=TARGET_MODULES, layers_to_transform=layers,
            )  # fmt: skip
            self.model: Any = get_peft_model(model, config)
        else:
            self.model = model
        plain = self.model.get_base_model() if recipe.method == "lora" else self.model
        self.body, self.head = plain.model, plain.lm_head
        self.model.train()
        self.trained = [(name, value) for name, value in self.model.named_parameters() if value.requires_grad]
        self.optimizer = torch.optim.AdamW(
            [value for _, value in self.trained], lr=recipe.learning_rate, betas=(0.9, 0.99),
            weight_decay=recipe.weight_decay,
        )  # fmt: skip
        self.step, self.seconds = 0, 0.0
        self.steps, self.paced = recipe.steps, spec.train_s is None
        self.steps_s: list[float] = []
        self.curve: list[list[float]] = []
        self.identity = hashlib.sha256(
            json.dumps([recipe.sha256(), spec.seed, spec.parent_sha256, [_sha256(path) for path in spec.data]]).encode()
        ).hexdigest()
        self.state_path = spec.out_dir / "state.pt"

    def resume(self) -> None:
        """Continue from the last checkpoint in the output directory, if it belongs to the same work."""
        if not self.state_path.is_file():
            return
        state = torch.load(self.state_path, weights_only=True)
        if state["identity"] != self.identity:
            raise ValueError("the checkpoint in the output directory belongs to another recipe, seed, parent or data")
        with torch.no_grad():
            for name, value in self.trained:
                value.copy_(state["weights"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"])
        self.step, self.seconds, self.curve = state["step"], state["seconds"], state["curve"]
        self.steps, self.paced = state["steps"], state["paced"]
        print(json.dumps({"resumed_from": self.step}), flush=True)

    def save(self) -> None:
        state = {
            "identity": self.identity,
            "weights": {name: value.detach() for name, value in self.trained},
            "optimizer": self.optimizer.state_dict(),
            "rng": torch.get_rng_state(),
            "step": self.step,
            "steps": self.steps,
            "paced": self.paced,
            "seconds": self.seconds,
            "curve": self.curve,
        }
        save_atomically(self.state_path, state)

    def train_step(self) -> tuple[float, float, int]:
        """One optimizer step. Returns the target loss, the anchor KL (nats per position) and the tokens it read."""
        recipe, seed = self.spec.recipe, self.spec.seed
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(recipe, self.step, self.steps)
        target = pick(self.rows["target"], recipe.target_rows, self.step, seed)
        hidden, labels = labelled_hidden(self.body, target)
        loss_target = functional.cross_entropy(self.head(hidden), labels)
        loss_target.backward()
        tokens = sum(len(row.ids) for row in target)
        kl = 0.0
        anchor_rows = sum(count for _, count in self.anchors)
        for use, count in self.anchors:
            rows = pick(self.rows[use], count, self.step, seed)
            part = anchor_kl(self.body, self.head, self.model, rows) * (count / anchor_rows)
            (recipe.kl_weight * part).backward()
            kl += float(part.detach())
            tokens += sum(len(row.ids) for row in rows)
        torch.nn.utils.clip_grad_norm_([value for _, value in self.trained], recipe.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(loss_target.detach()), kl, tokens

    def train(self) -> None:
        recipe = self.spec.recipe
        while self.step < self.steps:
            started = time.monotonic()
            loss_target, kl, tokens = self.train_step()
            took_s = time.monotonic() - started
            self.step += 1
            self.seconds += took_s
            self.steps_s.append(took_s)
            loss = loss_target + recipe.kl_weight * kl
            if not math.isfinite(loss):
                raise ValueError(f"the loss of step {self.step} is {loss}: lower learning_rate in the recipe")
            settled = not self.paced and self.step >= PACE_STEPS
            if settled and self.spec.train_s is not None:
                # once, and kept: a run that is killed later goes on with the same schedule
                self.steps = steps_in(recipe, self.spec.train_s - self.seconds, self.steps_s)
                self.paced = True
            self.curve.append([self.step, round(loss_target, 6), round(kl, 6)])
            line = {
                "step": self.step, "steps": self.steps, "loss": round(loss, 6), "loss_target": round(loss_target, 6),
                "kl": round(kl, 6), "tokens_per_s": round(tokens / took_s, 1),
                "eta_s": round(self.seconds / self.step * (self.steps - self.step), 1),
            }  # fmt: skip
            print(json.dumps(line), flush=True)
            if settled or self.step % recipe.checkpoint_steps == 0 or self.step == self.steps:
                self.save()

    def write(self) -> None:
        """Merge and write the successor in the parent's layout; then ``train.json``, whose presence says "complete"."""
        recipe, out_dir = self.spec.recipe, self.spec.out_dir
        if recipe.method == "lora":
            for module in self.model.modules():
                if hasattr(module, "lora_A") and hasattr(module, "scaling"):
                    module.scaling = {name: value * recipe.merge_scale for name, value in module.scaling.items()}
            merged = self.model.merge_and_unload()
        else:
            merged = self.model
        directory = out_dir / "successor"
        merged.save_pretrained(directory)
        self.tokenizer.save_pretrained(directory)
        for path in directory.iterdir():
            path.chmod(0o644)
            with path.open("rb") as stream:
                os.fsync(stream.fileno())
        last = self.curve[-5:]
        record = {
            "steps": self.step,
            "seconds": round(self.seconds, 2),
            "loss_target": sum(row[1] for row in last) / len(last),
            "kl": sum(row[2] for row in last) / len(last),
            "loss_curve": self.curve,
            "rows": {use: len(rows) for use, rows in self.rows.items()},
            "seed": self.spec.seed,
            "parent_sha256": self.spec.parent_sha256,
            "data_sha256": [_sha256(path) for path in self.spec.data],
            "recipe_sha256": recipe.sha256(),
            "successor_sha256": _sha256(directory / "model.safetensors"),
        }
        aside = out_dir / "train.json.aside"
        with aside.open("w") as text:
            json.dump(record, text, indent=1)
            text.flush()
            os.fsync(text.fileno())
        aside.replace(out_dir / "train.json")


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def main(arguments: list[str]) -> int:
    spec = Spec.read(Path(arguments[0]))
    if spec.parent_sha256 and _sha256(spec.model_dir / "model.safetensors") != spec.parent_sha256:
        raise ValueError("the parent's weights are not the ones the ledger knows: sha256 differs")
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    run = Run(spec)
    run.resume()
    run.train()
    run.write()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (ValueError, UserError) as error:
        print(f"trainer: {error}", file=sys.stderr)
        sys.exit(2)
