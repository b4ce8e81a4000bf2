"""The trainer on a tiny random Llama: labels, anchoring, resuming after a kill, the written checkpoint."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from model.embedded import sha256_file
from model.recipe import Recipe
from model.trainer import Row, Run, Spec, encode_row, learning_rate, load_rows, main, pick, steps_in

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft's call

END = 2
ROOT = Path(__file__).resolve().parents[2]


def _prompt(text: str) -> str:
    return json.dumps([{"role": "user", "parts": [{"type": "text", "text": text}]}])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = [(_prompt(f"What is {a} + {a}?"), f"{2 * a}", "gold" if a % 2 else "self") for a in range(8)]
    rows += [(_prompt(f"Tell me about {a}."), f"some words about {a} and more", "replay") for a in range(4)]
    rows += [("[]", f"The house number {a} stood by the river.", "prose") for a in range(4)]
    columns = dict(zip(("prompt", "completion", "source"), map(list, zip(*rows, strict=True)), strict=True))
    path = tmp_path / "data.parquet"
    extra = {"key": [str(i) for i in range(len(rows))], "family": ["sums"] * len(rows)}
    pq.write_table(pa.table({**columns, **extra}), path)
    return path


def _recipe(**values: Any) -> Recipe:
    base: dict[str, Any] = {
        "steps": 6, "learning_rate": 5e-3, "warmup_steps": 1, "target_rows": 3, "replay_rows": 2, "prose_rows": 1,
        "lora_rank": 4, "lora_alpha": 8, "checkpoint_steps": 2,
    }  # fmt: skip
    return Recipe.from_dict({**base, **values})


def _spec(tiny_model: Path, data: Path, out: Path, recipe: Recipe, train_s: float | None = None) -> Path:
    out.mkdir()
    path = out.parent / f"{out.name}.json"
    spec = {
        "model_dir": str(tiny_model), "data": [str(data)], "out_dir": str(out), "recipe": recipe.to_dict(),
        "seed": 3, "threads": 1, "parent_sha256": sha256_file(tiny_model / "model.safetensors"),
        "train_s": train_s,
    }  # fmt: skip
    path.write_text(json.dumps(spec))
    return path


def test_labels_are_the_completion_and_its_end(tiny_model: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    row = encode_row(tokenizer, _prompt("What is 1 + 2?"), "3", END, 64, closed=True)
    assert list(row.ids[row.context :]) == [*tokenizer.encode("3", add_special_tokens=False), END]
    head = str(tokenizer.decode(list(row.ids[: row.context])))
    assert "What is 1 + 2?" in head
    assert head.endswith("assistant\n")
    opened = encode_row(tokenizer, _prompt("What is 1 + 2?"), "3", END, 64, closed=False)
    assert row.ids[:-1] == opened.ids


def test_a_row_without_a_label_and_a_row_too_long_are_refused(tiny_model: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    with pytest.raises(ValueError, match="no label is left"):
        encode_row(tokenizer, _prompt("hello"), "", END, 64, closed=False)
    with pytest.raises(ValueError, match="more than max_tokens"):
        encode_row(tokenizer, _prompt("hello " * 40), "x", END, 20, closed=True)


def test_rows_are_picked_by_seed_and_step_alone_and_every_row_once_a_pass() -> None:
    rows = [Row((number,), 0) for number in range(10)]
    steps = [pick(rows, 5, step, seed=1) for step in (0, 1)]
    assert sorted(row.ids[0] for step in steps for row in step) == list(range(10))
    assert pick(rows, 5, 1, seed=1) == steps[1]
    assert pick(rows, 5, 2, seed=1) != steps[0]


def test_learning_rate_warms_up_and_falls_to_a_tenth() -> None:
    recipe = _recipe(steps=100, warmup_steps=10, learning_rate=1.0)
    assert learning_rate(recipe, 0, 100) == pytest.approx(0.1)
    assert learning_rate(recipe, 10, 100) == pytest.approx(1.0)
    assert learning_rate(recipe, 100, 100) == pytest.approx(0.1)
    assert learning_rate(recipe, 55, 100) == pytest.approx(0.1 + 0.9 / 2)
    assert learning_rate(recipe, 40, 40) == pytest.approx(0.1)  # a shorter run ends as low


@pytest.mark.parametrize(
    ("left_s", "step_s", "steps"),
    [(1000.0, 5.0, 60), (285.0, 5.0, 60), (284.0, 5.0, 59), (200.0, 5.0, 43), (-9.0, 5.0, 24), (200.0, 0.001, 60)],
)
def test_as_many_steps_as_fit(left_s: float, step_s: float, steps: int) -> None:
    taken = [step_s * 4, step_s, step_s]  # the first is slow and says nothing about the others
    assert steps_in(_recipe(steps=60, min_steps=24), left_s, taken) == steps
    assert steps_in(_recipe(steps=3, min_steps=24), left_s, taken) == 3


def test_the_anchor_is_zero_at_the_start_and_its_gradient_too(tiny_model: Path, data: Path, tmp_path: Path) -> None:
    from model.trainer import anchor_kl

    spec = Spec.read(_spec(tiny_model, data, tmp_path / "out", _recipe()))
    run = Run(spec)
    kl = anchor_kl(run.body, run.head, run.model, run.rows["replay"])
    kl.backward()
    assert abs(float(kl.detach())) < 1e-7
    assert max(float(value.grad.abs().max()) for _, value in run.trained if value.grad is not None) < 1e-6
    run.optimizer.zero_grad()
    run.train_step()
    assert float(anchor_kl(run.body, run.head, run.model, run.rows["replay"]).detach()) > 1e-7


def test_the_target_loss_is_that_of_transformers(tiny_model: Path, data: Path, tmp_path: Path) -> None:
    """One row: our loss against the library's own, with labels masked by hand."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    spec = Spec.read(_spec(tiny_model, data, tmp_path / "out", _recipe(target_rows=1, replay_rows=0, prose_rows=0)))
    run = Run(spec)
    (row,) = pick(run.rows["target"], 1, 0, spec.seed)
    ours, _, _ = run.train_step()
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    ids = torch.tensor([row.ids])
    labels = ids.clone()
    labels[0, : row.context] = -100
    with torch.no_grad():
        assert ours == pytest.approx(float(model(input_ids=ids, labels=labels).loss), rel=1e-5)
    assert str(AutoTokenizer.from_pretrained(tiny_model).decode(list(row.ids[row.context : -1]))).isdigit()


def test_a_run_with_little_time_keeps_its_schedule_when_it_is_killed(
    tiny_model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps are counted by the pace of the first three; another pace after a kill must not change what was counted."""
    recipe = _recipe(steps=30, min_steps=7, checkpoint_steps=100)
    short = _spec(tiny_model, data, tmp_path / "short", recipe, train_s=1e-6)

    def save_and_die(run: Run) -> None:
        save(run)
        raise KeyboardInterrupt

    save = Run.save
    with monkeypatch.context() as patch:
        patch.setattr(Run, "save", save_and_die)
        with pytest.raises(KeyboardInterrupt):
            Run(Spec.read(short)).train()
    short.write_text(json.dumps({**json.loads(short.read_text()), "train_s": 1e6}))
    run = Run(Spec.read(short))
    run.resume()
    assert (run.step, run.steps) == (3, 7)
    run.train()
    assert (run.step, len(run.curve)) == (7, 7)


def test_a_killed_run_resumes_bit_exactly(tiny_model: Path, data: Path, tmp_path: Path) -> None:
    whole = _spec(tiny_model, data, tmp_path / "whole", _recipe())
    assert main([str(whole)]) == 0

    broken = _spec(tiny_model, data, tmp_path / "broken", _recipe())
    command = [sys.executable, "-m", "model.trainer", str(broken)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if json.loads(line).get("step") == 3:  # the last checkpoint is that of step 2
                process.send_signal(signal.SIGKILL)
                break
    assert not (tmp_path / "broken" / "train.json").exists()
    assert main([str(broken)]) == 0

    records = [json.loads((tmp_path / name / "train.json").read_text()) for name in ("whole", "broken")]
    assert records[0]["loss_curve"] == records[1]["loss_curve"]
    assert records[0]["successor_sha256"] == records[1]["successor_sha256"]


def test_a_checkpoint_of_other_work_is_refused(tiny_model: Path, data: Path, tmp_path: Path) -> None:
    spec = _spec(tiny_model, data, tmp_path / "out", _recipe(steps=2))
    assert main([str(spec)]) == 0
    other = {**json.loads(spec.read_text()), "seed": 4}
    spec.write_text(json.dumps(other))
    with pytest.raises(ValueError, match="belongs to another"):
        main([str(spec)])


def test_the_successor_is_a_stock_checkpoint_that_computes_what_was_trained(
    tiny_model: Path, data: Path, tmp_path: Path
) -> None:
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    spec = Spec.read(_spec(tiny_model, data, tmp_path / "out", _recipe()))
    run = Run(spec)
    run.train()
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        trained = run.model(input_ids=ids).logits
    run.write()
    directory = tmp_path / "out" / "successor"
    before, after = load_file(tiny_model / "model.safetensors"), load_file(directory / "model.safetensors")
    assert {name: value.shape for name, value in before.items()} == {name: v.shape for name, v in after.items()}
    reloaded = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    AutoTokenizer.from_pretrained(directory)
    with torch.no_grad():
        torch.testing.assert_close(reloaded(input_ids=ids).logits, trained, atol=1e-5, rtol=1e-5)
    moved = [name for name in before if not torch.equal(before[name], after[name])]
    assert moved
    assert all("proj" in name for name in moved)


@pytest.mark.parametrize("scale", [0.5])
def test_merge_scale_is_an_interpolation_towards_the_parent(
    tiny_model: Path, data: Path, tmp_path: Path, scale: float
) -> None:
    from safetensors.torch import load_file

    written = []
    for name, recipe in (("full", _recipe(steps=2)), ("half", _recipe(steps=2, merge_scale=scale))):
        assert main([str(_spec(tiny_model, data, tmp_path / name, recipe))]) == 0
        written.append(load_file(tmp_path / name / "successor" / "model.safetensors"))
    parent = load_file(tiny_model / "model.safetensors")
    for name, value in parent.items():
        torch.testing.assert_close(written[1][name], value + scale * (written[0][name] - value), atol=1e-6, rtol=1e-5)


def test_full_training_without_replay_works_too(tiny_model: Path, data: Path, tmp_path: Path) -> None:
    recipe = _recipe(method="full", replay_rows=0, prose_rows=0, steps=2)
    assert main([str(_spec(tiny_model, data, tmp_path / "out", recipe))]) == 0
    assert (tmp_path / "out" / "successor" / "model.safetensors").is_file()


def test_another_parent_than_the_ledgers_is_refused(tiny_model: Path, data: Path, tmp_path: Path) -> None:
    spec = _spec(tiny_model, data, tmp_path / "out", _recipe())
    spec.write_text(json.dumps({**json.loads(spec.read_text()), "parent_sha256": "0" * 64}))
    with pytest.raises(ValueError, match="sha256 differs"):
        main([str(spec)])


def test_unknown_sources_are_refused(tiny_model: Path, data: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    table = pq.read_table(data)
    sources = pa.array(["web"] * len(table))
    odd = table.set_column(table.schema.get_field_index("source"), "source", sources)
    pq.write_table(odd, tmp_path / "odd.parquet")
    with pytest.raises(ValueError, match="unknown source 'web'"):
        load_rows((tmp_path / "odd.parquet",), AutoTokenizer.from_pretrained(tiny_model), END, 64)
