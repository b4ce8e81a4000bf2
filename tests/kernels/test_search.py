"""The searches find what they promise and a campaign's helpers decide what they say."""

from __future__ import annotations

import pytest

from kernels.search import (
    Search,
    best_beating,
    campaign_cells,
    distinct,
    exhaustive,
    hill_climb_proposer,
    normalised_sha256,
    random_proposer,
    rank,
    run,
)
from kernels.space import Schedule, TableCell, render, row_reduction_space

SPACE, SIZE = row_reduction_space(), 4096
START: Schedule = {"loop": "single", "block": 4096, "rows": 1, "num_warps": 32, "num_stages": 1}


def bowl(schedule: Schedule) -> float:
    """Smooth, one optimum: 4 warps, 2 rows, single."""
    warps, rows = int(schedule["num_warps"]), int(schedule["rows"])
    return 10 + abs(warps - 4) + abs(rows - 2) + (5 if schedule["loop"] == "looped" else 0)


def new_search() -> Search:
    return Search(SPACE, SIZE, bowl)


def test_exhaustive_tries_all_and_finds_the_optimum() -> None:
    search = exhaustive(new_search())
    assert len(search.tried) == len(SPACE.moves(SIZE))
    assert search.best == min(SPACE.moves(SIZE), key=bowl)
    assert search.untried() == []


def test_refused_schedules_count_as_tried_and_never_win() -> None:
    search = exhaustive(Search(SPACE, SIZE, lambda schedule: None if schedule["loop"] == "single" else bowl(schedule)))
    assert search.best is not None
    assert search.best["loop"] == "looped"
    assert len(search.tried) == len(SPACE.moves(SIZE))


def test_random_repeats_nothing_keeps_its_budget_and_its_seed() -> None:
    calls: list[Schedule] = []

    def evaluate(schedule: Schedule) -> float:
        calls.append(schedule)
        return bowl(schedule)

    first = run(Search(SPACE, SIZE, evaluate), random_proposer(5), budget=20)
    assert len(calls) == len(first.tried) == 20
    assert list(run(new_search(), random_proposer(5), budget=20).tried) == list(first.tried)
    assert list(run(new_search(), random_proposer(6), budget=20).tried) != list(first.tried)
    everything = run(new_search(), random_proposer(5), budget=10_000)
    assert len(everything.tried) == len(SPACE.moves(SIZE))


def test_hill_climbing_reaches_a_smooth_optimum() -> None:
    search = run(new_search(), hill_climb_proposer(START, seed=0), budget=40)
    assert search.best_us == bowl(min(SPACE.moves(SIZE), key=bowl))
    assert next(iter(search.tried)) == search.key(START)


def test_illegal_schedules_are_not_evaluated() -> None:
    with pytest.raises(ValueError, match="stages-need-a-loop"):
        new_search().try_one({**START, "num_stages": 3})


def test_rank_is_stable() -> None:
    assert rank({"a": 3.0, "b": 1.0, "c": 3.0}) == ["b", "a", "c"]


@pytest.mark.parametrize(("gain", "winner"), [(0.03, "b"), (0.0999, "b"), (0.11, None)])
def test_only_a_gain_of_the_stated_size_wins(gain: float, winner: str | None) -> None:
    assert best_beating(10.0, {"a": 9.5, "b": 9.0, "c": 12.0}, gain) == winner


def test_nothing_beats_with_no_results_or_no_incumbent() -> None:
    assert best_beating(10.0, {}, 0.0) is None
    with pytest.raises(ValueError, match="positive"):
        best_beating(0.0, {"a": 1.0}, 0.0)


def test_untuned_cells_come_first() -> None:
    table = {
        ("sm_80", 1): TableCell({}, "exhaustive", 1),
        ("sm_80", 2): TableCell({}, "liger", 2),
        ("sm_90", 1): TableCell({}, "exhaustive", 3),
        ("sm_90", 2): TableCell({}, "triton-tutorial", 4),
        ("gfx942", 2): TableCell({}, "liger", 5),
    }
    cells = campaign_cells(table, ["sm_80", "sm_90"], [1, 2])
    assert cells == [("sm_80", 2), ("sm_90", 2), ("sm_80", 1), ("sm_90", 1)]


SOURCE = (
    '"""Doc."""\nSCHEDULES = {\n    ("a", 1): {"block": 1, "source": "liger"},\n}\ndef f(x):\n    return x  # same\n'
)


def test_normal_form_ignores_layout_comments_docstrings_and_labels() -> None:
    table = '# other\nSCHEDULES = {\n  ("a", 1): {"source": "proposal", "block": 1},\n}\n'
    twin = table + '\n\ndef f(x):\n  "doc"\n  return x\n'
    assert normalised_sha256(SOURCE) == normalised_sha256(twin)
    assert normalised_sha256(SOURCE) != normalised_sha256(render(SOURCE, "a", 1, {"block": 2}))
    assert normalised_sha256(SOURCE) != normalised_sha256(SOURCE.replace("return x", "return -x"))


def test_distinct_keeps_the_first_of_each() -> None:
    other = render(SOURCE, "a", 1, {"block": 2})
    same = SOURCE + "# more\n"
    assert distinct([SOURCE, other, same]) == [SOURCE, other]
    assert distinct([SOURCE, other], known=[normalised_sha256(same)]) == [other]
