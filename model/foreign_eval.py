"""An eval file that somebody hands in: run only inside a sandbox, JSON in and out, the same face as any other eval.

The guest half (``python -m model.foreign_eval``) imports the file in the container and answers one request; the host
half asks, with bounds on every size, and believes nothing but shapes: a wrong file can only make itself be refused.
Each request is a process of its own, so a file cannot remember what it was asked before.

Not covered: images and files in items (text parts only come through), and evals that need packages of their own.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Protocol

from model.items import Item, Score
from workspace.errors import UserError

if TYPE_CHECKING:
    from workspace.sandbox_job import Outcome, SandboxJob

MAX_FILE_BYTES = 64 * 1024
MAX_ITEMS = 4000
MAX_PROMPT_CHARS = 8000
MAX_GOLD_CHARS = 2000
MAX_REPLY_CHARS = 8000
MAX_ANSWER_BYTES = 32 * 1024 * 1024
TIMEOUT_S = 60.0

_EVAL, _REQUEST, _ANSWER = "/in/eval.py", "/in/request.json", "/out/answer.json"


class Runner(Protocol):
    """What this file needs of ``workspace.sandbox.Sandboxes``."""

    def run(self, job: SandboxJob) -> Outcome: ...


class ForeignEval:
    """An eval whose code runs in sandboxes. Raises UserError naming the file and the field when it misbehaves."""

    def __init__(self, path: Path, sandboxes: Runner, name: str = "") -> None:
        self.path = path
        self.name = name or path.stem
        self._sandboxes = sandboxes
        if not path.is_file():
            raise UserError("no such file", field="--eval", value=str(path))
        if path.stat().st_size > MAX_FILE_BYTES:
            raise UserError(
                "is too large", field=str(path), value=path.stat().st_size, allowed=f"{MAX_FILE_BYTES} bytes"
            )
        from model.evals import check_fields

        found = self._ask({"do": "describe"})
        check_fields(path.name, found)
        self.TITLE: str = found["TITLE"]
        self.KIND: str = found["KIND"]
        self.MAX_NEW_TOKENS: int = found["MAX_NEW_TOKENS"]
        self.CHANCE: float = float(found.get("CHANCE") or 0.0)

    def items(self, seed: int, count: int) -> list[Item]:
        rows = self._ask({"do": "items", "seeds": [seed], "count": _bounded(count)})["items"]
        return [self._item(row) for row in rows[:count]]

    def items_of(self, seeds: Sequence[int]) -> list[Item]:
        """One item of each seed, in one request."""
        rows = self._ask({"do": "items", "seeds": list(seeds)[:MAX_ITEMS], "count": 1})["items"]
        return [self._item(row) for row in rows[: len(seeds)]]

    def score(self, item: Item, reply: str) -> Score:
        return self.score_many([item], [reply])[0]

    def score_many(self, items: Sequence[Item], replies: Sequence[str]) -> list[Score]:
        if not items:
            return []
        cut = [reply[:MAX_REPLY_CHARS] for reply in replies]
        request = {"do": "score", "items": [item.to_json() for item in items], "replies": cut}
        rows = self._ask(request)["scores"]
        if len(rows) != len(items):
            raise self._wrong("score", f"{len(rows)} scores for {len(items)} replies")
        return [self._score(row) for row in rows]

    def _item(self, row: Any) -> Item:
        try:
            item = Item.from_json(row)
            texts = [item.key, item.gold, item.template, *(message.text for message in item.messages)]
            if not all(isinstance(text, str) for text in texts):
                raise TypeError("key, gold, template and message texts are strings")
        except (KeyError, TypeError, AttributeError) as error:
            raise self._wrong("items", f"no Item: {error}") from error
        if not item.key or len(item.key) > MAX_PROMPT_CHARS or len(item.gold) > MAX_GOLD_CHARS:
            raise self._wrong("items", f"key is empty or too long, or gold is longer than {MAX_GOLD_CHARS} characters")
        if sum(len(message.text) for message in item.messages) > MAX_PROMPT_CHARS:
            raise self._wrong("items", f"a question is longer than {MAX_PROMPT_CHARS} characters")
        return item

    def _score(self, row: Any) -> Score:
        if not isinstance(row, dict) or type(row.get("strict")) is not bool:
            raise self._wrong("score", f"strict is not true or false in {str(row)[:80]}")
        lenient = row.get("lenient")
        if not isinstance(lenient, int | float) or not math.isfinite(lenient) or not 0 <= lenient <= 1:
            raise self._wrong("score", f"lenient is no number in [0, 1] in {str(row)[:80]}")
        return Score(row["strict"], float(lenient))

    def _wrong(self, field: str, message: str) -> UserError:
        return UserError(message, field=f"{self.path.name} {field}")

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        from workspace.sandbox_job import SandboxJob, SandboxLimits

        with TemporaryDirectory(prefix="nightshift-eval-") as folder:
            inside, out = Path(folder) / "in", Path(folder) / "out"
            inside.mkdir()
            out.mkdir()
            Path(folder).chmod(0o755)
            code = inside / "eval.py"
            code.write_bytes(self.path.read_bytes())
            question = inside / "request.json"
            question.write_text(json.dumps(request))
            job = SandboxJob(
                argv=["python", "-m", "model.foreign_eval"],
                inputs={_EVAL: code, _REQUEST: question},
                output=out,
                limits=SandboxLimits(memory_mb=1024, cpus=1, pids=64, timeout_s=TIMEOUT_S, file_mb=64, out_mb=64),
                name="foreign-eval",
                rooms=("workspace", "model"),
            )
            outcome = self._sandboxes.run(job)
            answer = _read_answer(out / Path(_ANSWER).name)
        if outcome.status != "done" or answer is None:
            last = (outcome.stderr.strip().splitlines() or ["no answer"])[-1][:300]
            why = last if outcome.status in ("failed", "done") else outcome.status.replace("_", " ")
            raise self._wrong(str(request["do"]), f"the file failed in its sandbox: {why}")
        if "error" in answer:
            raise self._wrong(str(answer.get("field", ""))[:80], str(answer["error"])[:500])
        return answer


def load_foreign(path: Path, sandboxes: Runner, seed: int = 1) -> ForeignEval:
    """The file as an eval, after it has proved itself (``model.evals.validate_eval``)."""
    from model.evals import validate_eval

    found = ForeignEval(path, sandboxes)
    validate_eval(found, seed)
    return found


def _bounded(count: int) -> int:
    if not 0 <= count <= MAX_ITEMS:
        raise UserError("too many items at once", field="count", value=count, allowed=f"0 to {MAX_ITEMS}")
    return count


def _read_answer(path: Path) -> dict[str, Any] | None:
    """What the guest wrote: a regular file of bounded size that holds a JSON object, or None."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as stream:
        data = stream.read(MAX_ANSWER_BYTES + 1)
    if len(data) > MAX_ANSWER_BYTES:
        return None
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


# The guest half


def guest(eval_path: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Answer one request with the file's own functions; errors come back as data that names the field."""
    field = "import"
    try:
        spec = importlib.util.spec_from_file_location("foreign_eval_file", eval_path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        if request["do"] == "describe":
            field = "describe"
            for name in ("items", "score"):
                if not callable(getattr(module, name, None)):
                    return {"error": "is missing: a function, see model/items.py", "field": name}
            return {name: getattr(module, name, None) for name in ("TITLE", "KIND", "MAX_NEW_TOKENS", "CHANCE")}
        if request["do"] == "items":
            field = "items"
            make: Callable[[int, int], list[Item]] = module.items
            return {"items": [item.to_json() for seed in request["seeds"] for item in make(seed, request["count"])]}
        field = "score"
        scores = []
        for row, reply in zip(request["items"], request["replies"], strict=True):
            found = module.score(Item.from_json(row), reply)
            scores.append({"strict": found.strict, "lenient": found.lenient})
        return {"scores": scores}
    except Exception as error:  # noqa: BLE001  whatever a file of somebody's raises belongs to that file
        return {"error": f"{type(error).__name__}: {error}", "field": field}


def main() -> None:
    answer = guest(Path(_EVAL), json.loads(Path(_REQUEST).read_text()))
    Path(_ANSWER).write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
