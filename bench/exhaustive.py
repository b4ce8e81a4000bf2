"""Every schedule of a task's space, compiled and ranked by predicted time, for each cell of its table.

    python -m bench.exhaustive rmsnorm               the optimum against the table's cell, per (target, size)
    python -m bench.exhaustive rmsnorm --all         every schedule, ranked
    python -m bench.exhaustive rmsnorm --write KEY   writes the optimum into the cells KEY = TARGET:SIZE

Times are predictions (``kernels.cost``), never measurements. The kernels are the shipped ones, compiled without a
sandbox.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels.compile import BENCH_DTYPE, Compiler, Resources, bench_shape, table_cells, trusted_compiler
from kernels.cost import Prediction, predict
from kernels.library import STARTER_DIR, load_task
from kernels.search import rank
from kernels.space import Cell, Value, parse_schedules, render
from kernels.task import Task


class FileCache(MutableMapping[str, dict[str, Any]]):
    """Compilations in a folder, one JSON file each, by content key."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"

    def __getitem__(self, key: str) -> dict[str, Any]:
        try:
            data: dict[str, Any] = json.loads(self._path(key).read_text())
        except FileNotFoundError:
            raise KeyError(key) from None
        return data

    def __setitem__(self, key: str, value: dict[str, Any]) -> None:
        aside = self._path(key).with_suffix(".part")
        aside.write_text(json.dumps(value))
        aside.replace(self._path(key))

    def __delitem__(self, key: str) -> None:
        self._path(key).unlink()

    def __iter__(self) -> Iterator[str]:
        return (path.stem for path in self._folder.glob("*.json"))

    def __len__(self) -> int:
        return sum(1 for _ in self)


@dataclass(frozen=True)
class Row:
    """One schedule of one cell: what it needs and its prediction."""

    schedule: dict[str, Value]
    resources: Resources
    prediction: Prediction


def load(name: str) -> tuple[Task, Path]:
    """A starter task and the path of its kernel."""
    return load_task(STARTER_DIR / name), STARTER_DIR / name / "kernel.py"


def search_cell(compiler: Compiler, task: Task, source: str, cell: Cell) -> tuple[list[Row], list[str]]:
    """All legal schedules of a cell from the fastest predicted to the slowest, and what did not compile."""
    rows, refused = [], []
    for schedule in task.space.moves(cell[1]):
        candidate = render(source, *cell, schedule)
        result = compiler.compile(task, candidate, [cell])
        refused += [f"{schedule}: {reason.detail}" for reason in result.reasons]
        if cell in result.resources:
            rows.append(_row(task, cell, schedule, result.resources[cell]))
    order = rank({index: row.prediction.time_us for index, row in enumerate(rows)})
    return [rows[index] for index in order], refused


def _row(task: Task, cell: Cell, schedule: dict[str, Value], resources: Resources) -> Row:
    shape = bench_shape(task, cell[1])
    return Row(schedule, resources, predict(task, shape, BENCH_DTYPE, cell[0], resources, schedule=schedule))


def _text(schedule: dict[str, Value]) -> str:
    return " ".join(f"{name}={value}" for name, value in schedule.items())


def _show(task: Task, cell: Cell, rows: list[Row], incumbent: Row, label: str, everything: bool) -> None:
    best, shape = rows[0], bench_shape(task, cell[1])
    gain = 1 - best.prediction.time_us / incumbent.prediction.time_us
    place = next(index for index, row in enumerate(rows, 1) if row.schedule == incumbent.schedule)
    print(f"{cell[0]} size {cell[1]} shape {shape} {BENCH_DTYPE}: {len(rows)} schedules, predicted us, "
          f"floor {best.prediction.floor_us:.2f}")  # fmt: skip
    print(f"  best      {best.prediction.time_us:9.3f}  {_text(best.schedule)}")
    print(f"  cell      {incumbent.prediction.time_us:9.3f}  {_text(incumbent.schedule)}  "
          f"[{label}, rank {place}, best is {gain:.1%} faster]")  # fmt: skip
    if everything:
        for index, row in enumerate(rows, 1):
            terms = row.prediction.terms
            parts = " ".join(f"{name} {float(terms[name]):.1f}" for name in ("dram", "l2", "latency", "issue", "local"))
            print(f"  {index:4d} {row.prediction.time_us:9.3f}  regs {row.resources.registers:3d} "
                  f"spill {row.resources.spill_bytes:4d} shared {row.resources.shared_bytes:6d} "
                  f"occ {float(terms['occupancy']):.2f} {parts} ramp {float(terms['ramp']):.1f}  "
                  f"{_text(row.schedule)}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("task")
    parser.add_argument("--cell", action="append", default=[], metavar="TARGET:SIZE", help="only these cells")
    parser.add_argument("--all", action="store_true", help="print every schedule")
    parser.add_argument("--write", nargs="*", metavar="TARGET:SIZE", help="write the optimum of these cells")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "nightshift-exhaustive")
    arguments = parser.parse_args()
    task, path = load(arguments.task)
    source = path.read_text()
    chosen = {(text.split(":")[0], int(text.split(":")[1])) for text in [*arguments.cell, *(arguments.write or [])]}
    began = time.monotonic()
    with trusted_compiler(FileCache(arguments.cache / "cells"), arguments.cache / "triton") as compiler:
        for cell in table_cells(task, source):
            if chosen and cell not in chosen:
                continue
            rows, refused = search_cell(compiler, task, source, cell)
            present = parse_schedules(source)[cell]
            compiled = compiler.compile(task, source, [cell]).resources
            incumbent = _row(task, cell, present.schedule, compiled[cell])
            _show(task, cell, rows, incumbent, present.source, arguments.all)
            for line in refused:
                print(f"  refused: {line}", file=sys.stderr)
            if f"{cell[0]}:{cell[1]}" in (arguments.write or []):
                written = render(path.read_text(), *cell, rows[0].schedule, "exhaustive")
                path.write_text(written)
    print(f"took {time.monotonic() - began:.0f} s; predictions, not measurements")


if __name__ == "__main__":
    main()
