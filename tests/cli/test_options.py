"""The names on the command line are a contract: a change of theirs must be meant."""

from __future__ import annotations

from tests.cli.option_tree import FROZEN, render


def test_the_option_tree_is_the_frozen_one() -> None:
    assert render() == FROZEN.read_text(), "meant? then: python -m tests.cli.option_tree"


def test_every_command_of_the_contract_is_there() -> None:
    commands = set(render().splitlines())
    for name in (
        "init", "doctor", "night", "serve", "report", "kernel list", "kernel show", "kernel check", "kernel language",
        "kernel bench", "kernel optimize", "kernel self-test", "posttrain",
        "data list", "data show", "eval list", "eval run", "eval compare", "model list", "model show", "model lineage",
        "model promote", "model rollback", "model export", "model ask", "project propose", "project list",
        "project show", "project join", "review list", "review show", "review diff", "review approve", "review reject",
        "review request-changes", "review merge", "db upgrade", "db check", "db backup", "db restore", "db move",
    ):  # fmt: skip
        assert f"nightshift {name}" in commands, name
