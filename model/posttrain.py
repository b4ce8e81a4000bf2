"""The host side of post-training: builds the trainer's spec, runs it in a sandbox, watches it, verifies what it wrote.

The trainer (``model/trainer.py``) sees a read-only checkpoint, read-only data and one writable directory, and no
network.  What it reports is progress and never a verdict: the successor is judged elsewhere, from its files.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model.embedded import sha256_file
from model.recipe import Recipe
from workspace.errors import Interrupted, NightshiftError, SurroundingsError
from workspace.sandbox_job import SandboxJob, SandboxLimits

if TYPE_CHECKING:
    from workspace.sandbox import Sandboxes

WEIGHTS = "model.safetensors"


class PostTrainingFailed(NightshiftError):
    """The trainer stopped by itself; the message has its last words. What it checkpointed is kept."""


@dataclass(frozen=True)
class Progress:
    """One step of training. ``kl`` is KL(parent || successor) on the anchor rows, in nats per position."""

    step: int
    steps: int
    loss: float
    loss_target: float
    kl: float
    tokens_per_s: float
    eta_s: float


@dataclass(frozen=True)
class Trained:
    """A successor on disk. ``loss_curve`` rows are [step, target loss, kl]; ``seconds`` is time in steps alone."""

    directory: Path  # a stock transformers checkpoint
    weights_sha256: str
    steps: int
    loss_target: float
    kl: float
    loss_curve: list[list[float]]
    tokens_per_s: float
    seconds: float
    wall_s: float
    peak_memory_bytes: int | None
    parent_sha256: str
    data_sha256: list[str]
    recipe_sha256: str

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "directory": self.directory.name}


def posttrain(
    sandboxes: Sandboxes,
    *,
    parent_dir: Path,
    data: Sequence[Path],
    out_dir: Path,
    recipe: Recipe,
    seed: int,
    threads: int = 2,
    train_s: float | None = None,
    timeout_s: float = 1800,
    memory_mb: int = 7000,
    on_progress: Callable[[Progress], None] | None = None,
    stop: threading.Event | None = None,
) -> Trained:
    """Train one successor in a sandbox, or continue the run that ``out_dir`` already holds.

    With ``train_s`` the trainer takes as many of the recipe's steps as fit. Call it again with the same arguments
    (``train_s`` aside) after a kill: it resumes from the last checkpoint, and a finished run is only verified.
    Raises PostTrainingFailed, SurroundingsError (memory, time), Interrupted (``stop`` was set).
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    parent_sha256 = sha256_file(parent_dir / WEIGHTS)
    data_sha256 = [sha256_file(path) for path in data]
    seen: list[Progress] = []
    wall_s, peak = 0.0, None
    if not (out_dir / "train.json").is_file():
        spec = {
            "model_dir": "/in/parent",
            "data": [f"/in/data/{place}.parquet" for place in range(len(data))],
            "out_dir": "/out",
            "recipe": recipe.to_dict(),
            "seed": seed,
            "threads": threads,
            "parent_sha256": parent_sha256,
            "train_s": train_s,
        }
        limits = SandboxLimits(memory_mb=memory_mb, cpus=threads, timeout_s=timeout_s, file_mb=2048)
        job = _job(spec, parent_dir, data, out_dir, limits)

        def on_line(line: str) -> None:
            progress = parse_progress(line)
            if progress is not None:
                seen.append(progress)
                if on_progress is not None:
                    on_progress(progress)

        outcome = sandboxes.run(job, on_line=on_line, stop=stop)
        wall_s, peak = outcome.wall_s, outcome.peak_memory_bytes
        if outcome.status != "done":
            _raise(outcome.status, outcome.stderr, timeout_s, memory_mb)
    return verify(
        out_dir, recipe=recipe, limited=train_s is not None, parent_dir=parent_dir, parent_sha256=parent_sha256,
        data_sha256=data_sha256, tokens_per_s=_median([each.tokens_per_s for each in seen]), wall_s=wall_s,
        peak_memory_bytes=peak,
    )  # fmt: skip


def _job(
    spec: dict[str, Any], parent_dir: Path, data: Sequence[Path], out_dir: Path, limits: SandboxLimits
) -> SandboxJob:
    spec_path = out_dir.parent / f"{out_dir.name}.spec.json"  # beside the output: the trainer may not rewrite it
    spec_path.write_text(json.dumps(spec, indent=1))
    return SandboxJob(
        argv=["python", "-m", "model.trainer", "/in/spec.json"],
        inputs={
            "/in/parent": parent_dir,
            "/in/spec.json": spec_path,
            **{f"/in/data/{place}.parquet": path for place, path in enumerate(data)},
        },
        output=out_dir,
        env={"OMP_NUM_THREADS": str(spec["threads"]), "HF_HUB_OFFLINE": "1", "HF_HOME": "/tmp/hf"},
        limits=limits,
        name="posttrain",
        rooms=("workspace", "model"),
    )


def parse_progress(line: str) -> Progress | None:
    """One line of the trainer's standard output, or None for any other line."""
    try:
        found = json.loads(line)
        return Progress(
            int(found["step"]), int(found["steps"]), float(found["loss"]), float(found["loss_target"]),
            float(found["kl"]), float(found["tokens_per_s"]), float(found["eta_s"]),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError):
        return None


def verify(
    out_dir: Path,
    *,
    recipe: Recipe,
    limited: bool = False,
    parent_dir: Path,
    parent_sha256: str,
    data_sha256: list[str],
    tokens_per_s: float = 0.0,
    wall_s: float = 0.0,
    peak_memory_bytes: int | None = None,
) -> Trained:
    """Check what the trainer wrote against what it was given: lineage, steps, layout, finite weights.

    ``limited``: its time was, so that fewer steps than the recipe's are right.
    Raises PostTrainingFailed naming what does not agree.
    """
    try:
        record = json.loads((out_dir / "train.json").read_text())
        weights = out_dir / "successor" / WEIGHTS
        weights_sha256 = sha256_file(weights)
    except (OSError, ValueError) as error:
        raise PostTrainingFailed(f"the trainer left no readable result: {error}", remedy="run it again") from error
    wanted: dict[str, object] = {
        "parent_sha256": parent_sha256,
        "data_sha256": data_sha256,
        "recipe_sha256": recipe.sha256(),
        "successor_sha256": weights_sha256,
    }
    if not limited or not min(recipe.min_steps, recipe.steps) <= record.get("steps", -1) <= recipe.steps:
        wanted["steps"] = recipe.steps
    for name, value in wanted.items():
        if record.get(name) != value:
            raise PostTrainingFailed(
                f"train.json has another {name} than this run: {record.get(name)!r}, expected {value!r}",
                remedy=f"remove {out_dir.name} and train again",
            )
    _check_layout(parent_dir / WEIGHTS, weights)
    return Trained(
        directory=out_dir / "successor",
        weights_sha256=weights_sha256,
        steps=int(record["steps"]),
        loss_target=float(record["loss_target"]),
        kl=float(record["kl"]),
        loss_curve=[[float(value) for value in row] for row in record["loss_curve"]],
        tokens_per_s=tokens_per_s,
        seconds=float(record["seconds"]),
        wall_s=wall_s,
        peak_memory_bytes=peak_memory_bytes,
        parent_sha256=parent_sha256,
        data_sha256=data_sha256,
        recipe_sha256=recipe.sha256(),
    )


def _check_layout(parent: Path, successor: Path) -> None:
    """The successor has the parent's tensors, by name, shape and dtype, and all of its numbers are finite."""
    import torch
    from safetensors import safe_open

    with safe_open(parent, framework="pt") as old, safe_open(successor, framework="pt") as new:
        if set(old.keys()) != set(new.keys()):
            odd = ", ".join(sorted(set(old.keys()) ^ set(new.keys()))[:4])
            raise PostTrainingFailed(f"the successor's tensors are not the parent's: {odd}")
        for name in old.keys():  # noqa: SIM118  safe_open is no mapping
            before, after = old.get_slice(name), new.get_slice(name)
            if before.get_shape() != after.get_shape() or before.get_dtype() != after.get_dtype():
                raise PostTrainingFailed(f"tensor {name} has another shape or type than the parent's")
            if not torch.isfinite(new.get_tensor(name)).all():
                raise PostTrainingFailed(f"tensor {name} is not finite", remedy="lower learning_rate in the recipe")


def _raise(status: str, stderr: str, timeout_s: float, memory_mb: int) -> None:
    last = " / ".join(line for line in stderr.strip().splitlines()[-3:])
    if status == "killed":
        raise Interrupted("post-training was stopped; its last checkpoint is kept", remedy="run the night again")
    if status == "timed_out":
        raise SurroundingsError(
            f"post-training took longer than {timeout_s:.0f} s", remedy="fewer steps in the recipe, or more time"
        )
    if status == "out_of_memory":
        raise SurroundingsError(
            f"post-training needed more than {memory_mb} MB", remedy="fewer rows a step in the recipe"
        )
    raise PostTrainingFailed(f"the trainer {status}: {last}", remedy="the recipe and the data set are named above")


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else 0.0
