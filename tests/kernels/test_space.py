"""The space of schedules and the one-line patch that a move is."""

from __future__ import annotations

import difflib
import itertools
import random

import jsonschema  # type: ignore[import-untyped]
import pytest

from kernels.library import STARTER_DIR
from kernels.space import (
    Schedule,
    ScheduleTableError,
    elementwise_space,
    next_power_of_2,
    parse_schedules,
    render,
    row_reduction_space,
)

ROWS = row_reduction_space()
TILES = elementwise_space(inputs=2)
STARTERS = {name: (STARTER_DIR / name / "kernel.py").read_bytes().decode() for name in ("rmsnorm", "softmax", "swiglu")}
SPACES = {"rmsnorm": ROWS, "softmax": ROWS, "swiglu": TILES}

TABLE = """# ünïcode before the table moves byte columns
SCHEDULES = {
    ("sm_80", 64): {"block": 64, "num_warps": 1, "source": "liger"},  # kept as it is
    ("sm_90", 64): {"block": 64, "num_warps": 2, "source": "liger"},
}
"""


def changed_lines(before: str, after: str) -> tuple[list[str], list[str]]:
    lines = list(difflib.ndiff(before.splitlines(keepends=True), after.splitlines(keepends=True)))
    return [line[2:] for line in lines if line[0] == "-"], [line[2:] for line in lines if line[0] == "+"]


@pytest.mark.parametrize("name", sorted(STARTERS))
def test_a_move_changes_exactly_the_line_of_its_cell(name: str) -> None:
    source, space, draw = STARTERS[name], SPACES[name], random.Random(3)
    for cell, present in parse_schedules(source).items():
        for schedule in draw.sample(space.moves(cell[1]), 5):
            patched = render(source, *cell, schedule)
            parsed = parse_schedules(patched)
            assert parsed[cell].schedule == schedule
            assert parsed[cell].source == "proposal"
            removed, added = changed_lines(source, patched)
            assert len(removed) == len(added) == 1
            assert source.splitlines()[present.line - 1] == removed[0].rstrip("\n")
            others = {key: value for key, value in parsed.items() if key != cell}
            assert others == {key: value for key, value in parse_schedules(source).items() if key != cell}
            assert render(patched, *cell, present.schedule, present.source) == source


@pytest.mark.parametrize("name", sorted(STARTERS))
def test_every_shipped_cell_is_legal(name: str) -> None:
    for cell, present in parse_schedules(STARTERS[name]).items():
        assert SPACES[name].violation(present.schedule, cell[1]) is None, cell


def test_comments_and_line_ends_survive() -> None:
    patched = render(TABLE, "sm_80", 64, {"block": 128, "num_warps": 4})
    assert '    ("sm_80", 64): {"block": 128, "num_warps": 4, "source": "proposal"},  # kept as it is\n' in patched
    windows = TABLE.replace("\n", "\r\n")
    assert render(windows, "sm_80", 64, {"block": 128, "num_warps": 4}) == patched.replace("\n", "\r\n")


@pytest.mark.parametrize(
    ("cell", "line"), [(("sm_80", 32), 3), (("sm_80", 128), 4), (("sm_90", 32), 4), (("sm_90", 128), 5)]
)
def test_a_missing_cell_becomes_one_new_line_in_order(cell: tuple[str, int], line: int) -> None:
    patched = render(TABLE, *cell, {"block": 8, "num_warps": 1})
    assert changed_lines(TABLE, patched)[0] == []
    assert parse_schedules(patched)[cell].line == line
    assert list(parse_schedules(patched)) == sorted(parse_schedules(patched))


def test_without_a_last_comma_a_new_cell_still_changes_one_line_only() -> None:
    bare = TABLE.replace('"num_warps": 2, "source": "liger"},', '"num_warps": 2, "source": "liger"}')
    removed, added = changed_lines(bare, render(bare, "sm_90", 999, {"block": 8, "num_warps": 1}))
    assert (removed, len(added)) == ([], 1)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("x = 1\n", "exactly one"),
        ("SCHEDULES = {}\nSCHEDULES = {}\n", "exactly one"),
        ("SCHEDULES = {}\n", "empty"),
        ("SCHEDULES = dict(a=1)\n", "literal"),
        ("SCHEDULES = {**other}\n", "without"),
        ('SCHEDULES = {("a", 1): {}, ("b", 1): {}}\n', "line of its own"),
        ('SCHEDULES = {\n("a", 1): {\n"x": 1},\n}\n', "line of its own"),
        ("SCHEDULES = {f(): {}}\n", "plain literals"),
        ("SCHEDULES = {\n", "does not parse"),
    ],
)
def test_a_table_that_cannot_be_patched_says_why(source: str, words: str) -> None:
    with pytest.raises(ScheduleTableError, match=words):
        render(source, "a", 1, {"block": 1})


@pytest.mark.parametrize(
    "body", ['"a": {}', '("a", "1"): {}', '("a", True): {}', '("a", 1): []', '("a", 1): {"x": 1.5}']
)
def test_cells_of_another_form_are_refused(body: str) -> None:
    with pytest.raises(ScheduleTableError):
        parse_schedules(f"SCHEDULES = {{{body}}}\n")


def test_a_cell_twice_is_refused() -> None:
    with pytest.raises(ScheduleTableError, match="twice"):
        parse_schedules('SCHEDULES = {\n("a", 1): {},\n("a", 1): {},\n}\n')


def test_an_unknown_label_is_refused() -> None:
    with pytest.raises(ValueError, match="source_label"):
        render(TABLE, "sm_80", 64, {"block": 1}, "certified")


@pytest.mark.parametrize("space", [ROWS, TILES], ids=["rows", "tiles"])
@pytest.mark.parametrize("size", [1, 128, 1536, 4096, 5000, 128256])
def test_the_schema_allows_exactly_the_legal_moves(space: object, size: int) -> None:
    assert isinstance(space, type(ROWS))
    moves = space.moves(size)
    assert len({tuple(move.items()) for move in moves}) == len(moves)
    assert all(space.violation(move, size) is None for move in moves)
    schema = space.schema("sm_90", size)
    if not moves:
        assert schema == {"anyOf": []}
        return
    # every combination of values, against another implementation's reading of the schema
    validator = jsonschema.Draft202012Validator(schema)
    for values in itertools.product(*space.fields.values()):
        move = dict(zip(space.fields, values, strict=True))
        assert validator.is_valid({"target": "sm_90", "size": size, **move}) == (move in moves), move
    assert not validator.is_valid({"target": "sm_80", "size": size, **moves[0]})
    assert not validator.is_valid({"target": "sm_90", "size": size, **moves[0], "more": 1})
    for name, allowed in space.choices(size).items():
        assert allowed == [value for value in space.fields[name] if any(move[name] == value for move in moves)]


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"block": 2048}, "single-needs-the-whole-row-in-one-tile"),
        ({"block": 8192, "loop": "looped"}, "tile-covers-the-row-use-single"),
        ({"block": 256, "loop": "looped", "num_warps": 1}, "tile-outside-512-to-16384"),
        ({"num_stages": 2}, "stages-need-a-loop"),
        ({"num_warps": 1, "rows": 2}, "more-than-128-elements-per-thread"),
        ({"num_warps": 32, "block": 1024, "loop": "looped"}, "fewer-than-4-elements-per-thread"),
        ({"num_warps": 32, "block": 512, "loop": "looped"}, "fewer-than-1-element-per-thread"),
        ({"rows": 2, "loop": "looped", "block": 1024}, "rows-need-single"),
        ({"rows": 3}, "value-not-in-space:rows"),
        ({"rows": True}, "value-not-in-space:rows"),
        ({"colour": 1}, "unknown-field:colour"),
    ],
)
def test_a_broken_rule_has_a_name(change: dict[str, int | str], rule: str) -> None:
    legal: dict[str, int | str] = {"loop": "single", "block": 4096, "rows": 1, "num_warps": 8, "num_stages": 1}
    assert ROWS.violation(legal, 4000) is None
    assert ROWS.violation(legal | change, 4000) == rule


def test_a_missing_field_has_a_name() -> None:
    assert ROWS.violation({"loop": "single"}, 4096) == "missing-field:block"


def test_neighbours_differ_in_one_field_or_in_the_loop_form() -> None:
    centre: Schedule = {"loop": "single", "block": 4096, "rows": 1, "num_warps": 8, "num_stages": 1}
    near = ROWS.neighbours(centre, 4096)
    assert centre not in near
    assert {"loop": "single", "block": 4096, "rows": 2, "num_warps": 8, "num_stages": 1} in near
    assert {"loop": "single", "block": 4096, "rows": 2, "num_warps": 16, "num_stages": 1} not in near
    assert any(move["loop"] == "looped" for move in near)


def test_issued_bytes_by_hand() -> None:
    """Three rows of five columns, 2 bytes an element: each element once in, once out; the loop reads twice."""
    single: Schedule = {"loop": "single", "block": 8, "rows": 2, "num_warps": 1, "num_stages": 1}
    looped: Schedule = {**single, "loop": "looped", "rows": 1, "block": 4}
    assert ROWS.issued((3, 5), 2, single) == (30, 30)
    assert ROWS.issued((3, 5), 2, looped) == (60, 30)
    # with a weight of five: two programs of two rows read it twice, three programs of one row three times
    weighted = row_reduction_space(shared_row_bytes_per_col=1)
    assert weighted.issued((3, 5), 2, single) == (30 + 20, 30)
    assert weighted.issued((3, 5), 2, looped) == (60 + 30, 30)
    assert TILES.issued((3, 5), 2, {"loop": "tiled"}) == (60, 30)


@pytest.mark.parametrize(("value", "power"), [(1, 1), (2, 2), (3, 4), (4096, 4096), (4097, 8192)])
def test_next_power_of_2(value: int, power: int) -> None:
    assert next_power_of_2(value) == power
