"""Tests of the check that each table of results has a command, and each command a table."""

from __future__ import annotations

import pytest

from benchmarks import figures
from benchmarks.truth import mutations

NOT_ON_THE_PAGE = ("speed.continuous", "speed.placing_growth", "truth.mutations")
"""Commands without a table on the page; `make figures-smoke` does not run them."""

TABLE = "| a | b |\n|---|---:|\n| 1 | 2 |\n"


def test_the_page_has_a_command_for_each_table_and_a_table_for_each_command() -> None:
    page = figures.parts(figures.PAGE.read_text(encoding="utf-8"))
    assert len(page) > 5 and not figures.faults(page)


def test_quickest_arguments_are_smoke_or_those_of_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    assert figures.smoke_arguments("truth.mutations") == ["--count", "1"]
    monkeypatch.delattr(mutations, "SMOKE_ARGUMENTS")
    assert figures.smoke_arguments("truth.mutations") == ["--smoke"]


def test_what_is_wrong_with_a_page_is_told() -> None:
    text = f"""# Results

## Lonely table

{TABLE}
## Lonely command

`python -m benchmarks.field.rivals`

### A table below

{TABLE}
## Gone

`python -m benchmarks.field.gone`, `python -m benchmarks.field.rivals`, `python -m benchmarks.field.rivals`

- In a list:

  | a |
  | --- |
  | 1 |

{TABLE}"""
    page = figures.parts(text)
    assert [(part.heading, part.tables, part.commands) for part in page] == [
        ("Results", 0, ()),
        ("Lonely table", 1, ()),
        ("Lonely command", 0, ("field.rivals",)),
        ("A table below", 1, ()),
        ("Gone", 2, ("field.gone", "field.rivals")),
    ]
    assert figures.faults(page) == [
        "'Lonely table' has a table, and no command that prints it",
        "'Lonely command' names field.rivals, and has no table",
        "'A table below' has a table, and no command that prints it",
        "'Gone' names field.gone, which is not there",
    ]


def test_a_command_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutations, "SMOKE_ARGUMENTS", "--no-such-option")
    assert "exit status 2" in figures.run("truth.mutations")


def test_a_command_that_leaves_files_behind_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutations, "SMOKE_ARGUMENTS", "--count 1 --output here.json")
    assert "left here.json" in figures.run("truth.mutations")


@pytest.mark.slow
@pytest.mark.parametrize("command", NOT_ON_THE_PAGE)
def test_a_command_that_the_page_does_not_name_runs_with_its_quickest_arguments(command: str) -> None:
    assert figures.run(command) == ""
