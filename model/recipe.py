"""Post-training recipes: a typed object beside its TOML file, wrong keys and values refused by name."""

from __future__ import annotations

import hashlib
import json
import tomllib
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from workspace.errors import UserError


@dataclass(frozen=True)
class Recipe:
    """How a successor is trained from its parent and a data set.

    Each step draws ``target_rows`` rows of source "self" and "gold" and learns them by cross-entropy on the completion;
    ``replay_rows`` and ``prose_rows`` rows anchor the model: KL(parent || successor) over the full vocabulary, at the
    completion's positions (for prose at every position).  The KL and its gradient are zero at the start.
    ``merge_scale`` scales the LoRA when it is merged: below 1 it is an interpolation back towards the parent.
    """

    method: str = "lora"
    steps: int = 60
    min_steps: int = 24  # where time is short: with fewer there is nothing to judge
    learning_rate: float = 8e-4
    warmup_steps: int = 6
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    target_rows: int = 10
    replay_rows: int = 4
    prose_rows: int = 1
    kl_weight: float = 1.0
    lora_rank: int = 16
    lora_alpha: int = 32
    first_layer: int = 0  # LoRA from this layer on: the layers below need no backward pass
    merge_scale: float = 1.0
    checkpoint_steps: int = 10
    max_tokens: int = 256  # of a row; a longer one is refused, never cut

    def __post_init__(self) -> None:
        positive = ("steps", "learning_rate", "max_grad_norm", "target_rows", "lora_rank", "lora_alpha")
        for name in (*positive, "min_steps", "checkpoint_steps", "max_tokens"):
            if not getattr(self, name) > 0:
                raise UserError("out of range", field=name, value=getattr(self, name), allowed="> 0")
        for name in ("warmup_steps", "weight_decay", "replay_rows", "prose_rows", "kl_weight", "first_layer"):
            if getattr(self, name) < 0:
                raise UserError("out of range", field=name, value=getattr(self, name), allowed=">= 0")
        if not 0 < self.merge_scale <= 1:
            raise UserError("out of range", field="merge_scale", value=self.merge_scale, allowed="0 < merge_scale <= 1")
        if self.method not in ("lora", "full"):
            raise UserError("unknown method", field="method", value=self.method, allowed="lora, full")
        if self.method == "full" and (self.replay_rows or self.prose_rows):
            # Its KL would need the parent in memory beside the successor.
            raise UserError("anchoring needs method lora", field="replay_rows", value=self.replay_rows, allowed="0")

    @classmethod
    def from_dict(cls, table: dict[str, Any]) -> Self:
        """A recipe from plain values; an unknown key or a value of the wrong type is refused by name."""
        known = {field.name: field for field in fields(cls)}
        for key, value in table.items():
            if key not in known:
                raise UserError("unknown key", field=key, value=value, allowed=", ".join(sorted(known)))
            default = known[key].default
            wanted = (int, float) if isinstance(default, float) else (type(default),)
            if isinstance(value, bool) or not isinstance(value, wanted):
                raise UserError("wrong type", field=key, value=value, allowed=type(default).__name__)
        values: dict[str, Any] = {
            key: float(value) if isinstance(known[key].default, float) else value for key, value in table.items()
        }
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def sha256(self) -> str:
        """Hash of the fields, independent of layout and comments of the file."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()


def load_recipe(path: Path) -> Recipe:
    """Read ``[posttrain]`` of a recipe file; ``[data]`` beside it belongs to ``model/dataset.py``.

    Raises UserError for a missing or broken file, an unknown key, a value out of range.
    """
    try:
        document = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise UserError("no such recipe", field=str(path), remedy="nightshift init writes starter recipes") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"not TOML: {error}", field=str(path)) from error
    for name in document:
        if name not in ("data", "posttrain"):
            raise UserError("unknown key", field=f"{path.name}: {name}", allowed="[data], [posttrain]")
    table = document.get("posttrain")
    if not isinstance(table, dict):
        raise UserError("table is missing", field=f"{path.name}: posttrain", allowed="[posttrain]")
    return Recipe.from_dict(table)
