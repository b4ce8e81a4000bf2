"""A data set for one weakness: verified answers to the target, and a broad replay so that nothing else is forgotten.

- ``self``: the model's own sampled answers to target problems, kept only when the family's verifier says they are
  right.
- ``gold``: the verified gold answer, for problems that the model did not solve.
- ``replay``: the model's own replies to other kinds of prompt, sampled at temperature 1 (greedy replies sharpen it),
  and its own verified right answers on other families.
- ``prose``: passages of text without a prompt, where the recipe asks for them.

Problems come from secret 64-bit seeds.  Rows are deduplicated by normal form and compared with every eval item (by
normal form, text and n-grams); what touches one is left out and counted, and the finished file is checked once more: a
hit there refuses the data set.  Everything but the timings follows from the seed, the model and the recipe.

Files: ``data.parquet`` with the columns prompt (a JSON list of messages), completion, source, key, family, complete,
and ``manifest.json``.  ``complete`` is false for a reply that ran into its token limit: it does not end where it stops.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from model.contamination import ContaminationIndex, normal_text
from model.evals import ModelReply, TextModel, derive_seed, score_many
from model.items import Eval, Item, Message, Part, user
from workspace.errors import UserError
from workspace.files import fsync_tree, sha256_bytes, sha256_file

Source = Literal["self", "gold", "replay", "prose"]
StageProgress = Callable[[str, int, int], None]

PARQUET, MANIFEST = "data.parquet", "manifest.json"
COLUMNS = ("prompt", "completion", "source", "key", "family", "complete")
FORMAT = 1
MAX_DRAW_ROUNDS = 8


@dataclass(frozen=True)
class DataRecipe:
    """The ``[data]`` table of a recipe.

    ``problems`` target rows, each tried ``samples`` times at ``temperature`` (0, greedy, is what a small model is most
    often right at); more problems, up to ``oversample`` times as many, are tried while it is right at all and fewer
    than ``min_self_share`` of the rows are its own.  Where it still is right too seldom, gold rows are left out until
    the share is met, but never below ``min_problems`` rows.
    ``neighbour_problems`` are spread over the other families.
    """

    problems: int = 240
    min_problems: int = 100
    samples: int = 1
    temperature: float = 0.0
    min_self_share: float = 0.1
    oversample: float = 3.0
    replay_prompts: int = 160
    replay_tokens: int = 32
    replay_temperature: float = 1.0
    neighbour_problems: int = 60
    prose_rows: int = 0

    def __post_init__(self) -> None:
        for name, low, high in _LIMITS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise UserError("is out of range", field=f"data.{name}", value=value, allowed=f"{low} to {high}")

    @staticmethod
    def from_toml(text: str, where: str = "recipe") -> DataRecipe:
        """The ``[data]`` table of a recipe file; other tables are somebody else's. Raises UserError naming the key."""
        try:
            table = tomllib.loads(text).get("data", {})
        except tomllib.TOMLDecodeError as error:
            raise UserError(f"is not valid TOML: {error}", field=where) from error
        known = [each.name for each in fields(DataRecipe)]
        for key in table:
            if key not in known:
                raise UserError("unknown key", field=f"{where}: data.{key}", allowed=", ".join(known))
        return DataRecipe(**table)

    def with_settings(self, **values: float) -> DataRecipe:
        """The recipe with what the lab's settings (or a profile) say instead."""
        return replace(self, **values)  # type: ignore[arg-type]


_LIMITS: tuple[tuple[str, float, float], ...] = (
    ("problems", 1, 1_000_000),
    ("min_problems", 1, 1_000_000),
    ("samples", 0, 64),
    ("temperature", 0.0, 5.0),
    ("min_self_share", 0.0, 1.0),
    ("oversample", 1.0, 100.0),
    ("replay_prompts", 0, 1_000_000),
    ("replay_tokens", 1, 4096),
    ("replay_temperature", 0.0, 5.0),
    ("neighbour_problems", 0, 1_000_000),
    ("prose_rows", 0, 1_000_000),
)


@dataclass(frozen=True)
class Row:
    """One training row. ``key`` is its normal form: no two rows share one."""

    prompt: tuple[Message, ...]
    completion: str
    source: Source
    key: str
    family: str
    complete: bool = True

    def prompt_json(self) -> str:
        return json.dumps([asdict(message) for message in self.prompt], ensure_ascii=False)

    @property
    def free_text(self) -> bool:
        """Whether its wording is its own, so that n-grams mean something."""
        return self.key.startswith(("replay ", "prose "))


@dataclass(frozen=True)
class Cost:
    """What generation took."""

    tokens_in: int = 0
    tokens_out: int = 0
    replies: int = 0
    wall_s: float = 0.0


@dataclass(frozen=True)
class DatasetResult:
    """What was written. ``shares`` are of all rows, ``self_share_of_target`` of the target rows only."""

    directory: Path
    rows: int
    counts: dict[str, int]
    shares: dict[str, float]
    self_share_of_target: float
    refused: dict[str, int]
    parquet_sha256: str
    manifest_sha256: str
    manifest: dict[str, Any]
    cost: Cost

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": self.rows, "counts": self.counts, "shares": self.shares,
            "self_share_of_target": self.self_share_of_target, "refused": self.refused,
            "parquet_sha256": self.parquet_sha256, "manifest_sha256": self.manifest_sha256, "cost": asdict(self.cost),
        }  # fmt: skip


@dataclass(frozen=True)
class DatasetCheck:
    """``hits`` are rows that ask what an eval asks, ``faults`` anything else that is wrong with the files."""

    rows: int
    hits: list[str]
    faults: list[str]

    @property
    def passed(self) -> bool:
        return not self.hits and not self.faults


@dataclass
class _Builder:
    """Collects rows, refuses what is contaminated or there already, and counts."""

    model: TextModel
    index: ContaminationIndex
    progress: StageProgress
    rows: dict[str, Row] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    tried: set[str] = field(default_factory=set)
    cost: Cost = field(default_factory=Cost)

    def add(self, row: Row) -> bool:
        if row.key in self.rows:
            self.refused["duplicate"] += 1
            return False
        prompt = "\n".join(message.text for message in row.prompt)
        if self.index.check(row.key, [prompt, row.completion], free_text=row.free_text) is not None:
            self.refused["contaminated"] += 1
            return False
        self.rows[row.key] = row
        return True

    def problems(self, subject: Eval, seed: int, count: int) -> list[Item]:
        """``count`` items that were not tried yet and that no eval has."""
        found: list[Item] = []
        for turn in range(MAX_DRAW_ROUNDS):
            if len(found) >= count:
                break
            for item in subject.items(derive_seed(seed, "problems", turn), count):
                if len(found) >= count:
                    break
                if item.key in self.index.keys:
                    self.refused["contaminated"] += 1
                elif item.key in self.tried:
                    self.refused["duplicate"] += 1
                else:
                    self.tried.add(item.key)
                    found.append(item)
        return found

    def reply(
        self, stage: str, prompts: Sequence[Sequence[Message]], budgets: Sequence[int], temperature: float, seed: int
    ) -> Sequence[ModelReply]:
        if not prompts:
            return []
        started = time.monotonic()
        replies = self.model.reply(
            prompts, max_new_tokens=budgets, temperature=temperature, seed=seed,
            on_progress=lambda done, total: self.progress(stage, done, total),
        )  # fmt: skip
        self.cost = Cost(
            self.cost.tokens_in + sum(reply.tokens_in for reply in replies),
            self.cost.tokens_out + sum(reply.tokens_out for reply in replies),
            self.cost.replies + len(replies),
            self.cost.wall_s + time.monotonic() - started,
        )
        return replies


def build_dataset(
    model: TextModel,
    target: Eval,
    recipe: DataRecipe,
    out_dir: Path,
    *,
    seed: int,
    eval_items: Iterable[tuple[str, Sequence[Item]]],
    replay_prompts: Sequence[str] = (),
    neighbours: Mapping[str, Eval] | None = None,
    prose: Sequence[str] = (),
    parent_sha256: str = "",
    recipe_sha256: str = "",
    on_progress: StageProgress | None = None,
) -> DatasetResult:
    """Make the data set of one weakness in ``out_dir``, whole or not at all.

    ``seed`` is secret. ``eval_items`` are all items that may not be trained on: those of the target's judgement,
    guards, survey and hold-out. ``replay_prompts`` are general prompts and never a guard's; ``neighbours`` are other
    families. Raises UserError when nothing can be made or the finished file touches an eval.
    """
    if out_dir.exists():
        raise UserError("exists already", field="data set folder", value=str(out_dir))
    forbidden = [(name, list(items)) for name, items in eval_items]
    index = ContaminationIndex(forbidden)
    builder = _Builder(model, index, on_progress or (lambda _stage, _done, _total: None))
    target_rows = _target_rows(builder, target, recipe, derive_seed(seed, "target"))
    if not target_rows:
        raise UserError("no problem could be drawn that no eval has", field="target", value=target.name)
    _replay_rows(builder, replay_prompts, recipe, derive_seed(seed, "replay"))
    others = {name: each for name, each in (neighbours or {}).items() if name != target.name}
    _neighbour_rows(builder, others, recipe, derive_seed(seed, "neighbours"))
    for text in _pick(prose, recipe.prose_rows, derive_seed(seed, "prose")):
        builder.add(Row((), text, "prose", f"prose {normal_text(text)[:200]}", "prose"))
    rows = list(builder.rows.values())
    random.Random(derive_seed(seed, "order")).shuffle(rows)
    manifest = {
        "format": FORMAT, "target": target.name, "recipe": asdict(recipe), "recipe_sha256": recipe_sha256,
        "parent_sha256": parent_sha256, "seed_sha256": sha256_bytes(str(seed).encode()),
        "eval_items": {"count": index.items, "sha256": eval_items_sha256(forbidden)},
        "refused": dict(sorted(builder.refused.items())), "cost": asdict(builder.cost), "versions": _versions(),
    }  # fmt: skip
    return _publish(rows, manifest, out_dir, index, builder.cost)


def check_dataset(directory: Path, index: ContaminationIndex) -> DatasetCheck:
    """Read a data set back and compare it with its manifest and with every eval item of ``index``."""
    faults: list[str] = []
    try:
        manifest = json.loads((directory / MANIFEST).read_text())
        rows = read_rows(directory / PARQUET)
    except (OSError, ValueError) as error:
        return DatasetCheck(0, [], [f"cannot be read: {error}"])
    if manifest.get("parquet_sha256") != sha256_file(directory / PARQUET):
        faults.append(f"{PARQUET} is not the file that the manifest describes")
    if manifest.get("rows") != len(rows):
        faults.append(f"the manifest says {manifest.get('rows')} rows, there are {len(rows)}")
    keys = Counter(row.key for row in rows)
    faults += [f"key twice: {key[:80]}" for key, times in keys.items() if times > 1]
    return DatasetCheck(len(rows), _hits(rows, index), faults)


def load_dataset(directory: Path) -> DatasetResult:
    """What ``build_dataset`` wrote there earlier (a run that was killed after it takes this up again)."""
    manifest = json.loads((directory / MANIFEST).read_text())
    return DatasetResult(
        directory, manifest["rows"], manifest["counts"], manifest["shares"], manifest["self_share_of_target"],
        manifest["refused"], manifest["parquet_sha256"], sha256_file(directory / MANIFEST), manifest,
        Cost(**manifest["cost"]),
    )  # fmt: skip


def read_rows(path: Path) -> list[Row]:
    """The rows of a Parquet file. ValueError when columns are missing or a prompt is no list of messages."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path).to_pylist()
    except pa.ArrowException as error:
        raise ValueError(f"{path.name}: {error}") from error
    rows = []
    for number, record in enumerate(table):
        try:
            prompt = tuple(
                Message(message["role"], tuple(Part(**part) for part in message["parts"]))
                for message in json.loads(record["prompt"])
            )
            complete = bool(record.get("complete", True))
            values = (record["completion"], record["source"], record["key"], record["family"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path.name} row {number}: {error!r}") from error
        rows.append(Row(prompt, *values, complete))
    return rows


def eval_items_sha256(evals: Iterable[tuple[str, Sequence[Item]]]) -> str:
    """One hash over all forbidden items, whatever their order."""
    keys = sorted(f"{name}\0{item.key}" for name, items in evals for item in items)
    return sha256_bytes("\n".join(keys).encode())


def _target_rows(builder: _Builder, target: Eval, recipe: DataRecipe, seed: int) -> list[Row]:
    """``recipe.problems`` rows: all that the model solved itself, then gold answers in the order of drawing."""
    solved: dict[str, Row] = {}
    drawn: list[Item] = []
    wanted = recipe.min_self_share * recipe.problems
    limit = int(recipe.oversample * recipe.problems)
    for turn in range(MAX_DRAW_ROUNDS):
        size = recipe.problems if turn == 0 else min(max(8, recipe.problems // 2), limit - len(drawn))
        if size <= 0 or (turn > 0 and len(solved) >= wanted):
            break
        batch = builder.problems(target, derive_seed(seed, turn), size)
        drawn += batch
        solved.update(_own_answers(builder, target, batch, recipe, derive_seed(seed, "samples", turn)))
        if not batch or not solved:
            break  # never right: more tries would be wasted
    rows: list[Row] = []
    for row in solved.values():
        if len(rows) < recipe.problems and builder.add(row):
            rows.append(row)
    if rows and len(rows) < wanted:
        wanted_rows = min(recipe.problems, max(recipe.min_problems, int(len(rows) / recipe.min_self_share)))
    else:
        wanted_rows = recipe.problems
    unsolved = [item for item in drawn if item.key not in solved]
    verified = score_many(target, unsolved, [item.gold for item in unsolved])
    for item, score in zip(unsolved, verified, strict=True):
        if len(rows) >= wanted_rows:
            break
        if not score.strict:
            builder.refused["gold not verified"] += 1
            continue
        row = Row(item.messages, item.gold, "gold", item.key, target.name)
        if builder.add(row):
            rows.append(row)
    return rows


def _own_answers(
    builder: _Builder, subject: Eval, items: Sequence[Item], recipe: DataRecipe, seed: int
) -> dict[str, Row]:
    """The first right and finished sample of each item, if any."""
    samples = [item for item in items for _ in range(recipe.samples)]
    budgets = [subject.MAX_NEW_TOKENS] * len(samples)
    replies = builder.reply("own answers", [item.messages for item in samples], budgets, recipe.temperature, seed)
    scores = score_many(subject, samples, [reply.text for reply in replies])
    found: dict[str, Row] = {}
    for item, reply, score in zip(samples, replies, scores, strict=True):
        if score.strict and item.key not in found and reply.tokens_out < subject.MAX_NEW_TOKENS:
            found[item.key] = Row(item.messages, reply.text, "self", item.key, subject.name)
    return found


def _replay_rows(builder: _Builder, prompts: Sequence[str], recipe: DataRecipe, seed: int) -> None:
    """Own replies to general prompts; prompts that touch an eval are not even asked."""
    asked = []
    for prompt in _pick(prompts, recipe.replay_prompts, seed):
        key = f"replay {normal_text(prompt)}"
        if builder.index.check(key, [prompt], free_text=True) is not None:
            builder.refused["contaminated"] += 1
        else:
            asked.append((key, (user(prompt),)))
    budgets = [recipe.replay_tokens] * len(asked)
    conversations = [messages for _, messages in asked]
    replies = builder.reply("replay", conversations, budgets, recipe.replay_temperature, derive_seed(seed, "sample"))
    for (key, messages), reply in zip(asked, replies, strict=True):
        if not reply.text.strip():
            builder.refused["empty reply"] += 1
            continue
        complete = reply.tokens_out < recipe.replay_tokens
        builder.add(Row(messages, reply.text, "replay", key, "replay", complete))


def _neighbour_rows(builder: _Builder, neighbours: Mapping[str, Eval], recipe: DataRecipe, seed: int) -> None:
    """Own right answers on other families, so that the model does not forget what it knows there."""
    if not neighbours or not recipe.neighbour_problems:
        return
    per_family = max(1, recipe.neighbour_problems // len(neighbours))
    work = [(each, builder.problems(each, derive_seed(seed, name), per_family)) for name, each in neighbours.items()]
    budgets = [each.MAX_NEW_TOKENS for each, items in work for _ in items]
    asked = [item.messages for _, items in work for item in items]
    replies = builder.reply("neighbours", asked, budgets, recipe.replay_temperature, derive_seed(seed, "sample"))
    start = 0
    for each, items in work:
        part = replies[start : start + len(items)]
        start += len(items)
        for item, reply, score in zip(items, part, score_many(each, items, [said.text for said in part]), strict=True):
            if score.strict and reply.tokens_out < each.MAX_NEW_TOKENS:
                builder.add(Row(item.messages, reply.text, "replay", item.key, each.name))


def _pick(texts: Sequence[str], count: int, seed: int) -> list[str]:
    """``count`` different texts in a random order; all of them when there are fewer."""
    different = list(dict.fromkeys(text.strip() for text in texts if text.strip()))
    return random.Random(seed).sample(different, min(count, len(different)))


def _publish(
    rows: Sequence[Row], manifest: dict[str, Any], out_dir: Path, index: ContaminationIndex, cost: Cost
) -> DatasetResult:
    """Write aside, check what was written, sync, rename."""
    counts = {source: sum(row.source == source for row in rows) for source in ("self", "gold", "replay", "prose")}
    shares = {source: round(count / len(rows), 4) for source, count in counts.items()}
    target_rows = counts["self"] + counts["gold"]
    self_share = counts["self"] / target_rows if target_rows else 0.0
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{out_dir.name}.", dir=out_dir.parent))
    try:
        _write_parquet(rows, aside / PARQUET)
        parquet_sha256 = sha256_file(aside / PARQUET)
        manifest = {
            **manifest, "rows": len(rows), "counts": counts, "shares": shares,
            "self_share_of_target": round(self_share, 4), "parquet_sha256": parquet_sha256,
        }  # fmt: skip
        (aside / MANIFEST).write_text(json.dumps(manifest, indent=2, sort_keys=True, ensure_ascii=False) + "\n")
        check = check_dataset(aside, index)
        if not check.passed:
            raise UserError(f"the data set is refused: {(check.hits + check.faults)[0]}", field="data set")
        manifest_sha256 = sha256_file(aside / MANIFEST)
        aside.chmod(0o755)
        fsync_tree(aside)
        aside.rename(out_dir)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    refused = dict(manifest["refused"])
    return DatasetResult(
        out_dir, len(rows), counts, shares, self_share, refused, parquet_sha256, manifest_sha256, manifest, cost
    )


def _write_parquet(rows: Sequence[Row], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table(
        {
            "prompt": pa.array([row.prompt_json() for row in rows], pa.string()),
            "completion": pa.array([row.completion for row in rows], pa.string()),
            "source": pa.array([row.source for row in rows], pa.string()),
            "key": pa.array([row.key for row in rows], pa.string()),
            "family": pa.array([row.family for row in rows], pa.string()),
            "complete": pa.array([row.complete for row in rows], pa.bool_()),
        }
    )
    pq.write_table(table, path, compression="zstd")


def _hits(rows: Sequence[Row], index: ContaminationIndex) -> list[str]:
    found = []
    for row in rows:
        prompt = "\n".join(message.text for message in row.prompt)
        hit = index.check(row.key, [prompt, row.completion], free_text=row.free_text)
        if hit is not None:
            found.append(f"{row.source} row {row.key[:60]!r}: {hit}")
    return found


def _versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in ("reasoning-gym", "pyarrow")}
