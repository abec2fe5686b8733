"""Any error is told in one line."""

from __future__ import annotations

import pytest

from ov_hsdag.utils.errors import UserError, one_line

NODE = "While validating node 'opset1::Concat " + "x" * 500 + "'"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Exception from src/core.cpp:117:\nCheck 'a == b' failed at src/node.cpp:3:\nthe  reason\n\n", "the reason"),
        ("first\n  second", "first second"),
        (f"Exception from src/core.cpp:117:\n{NODE}\nShapes differ\n[1] and [2]", "Shapes differ [1] and [2]"),
        ("x" * 500, "x" * 500),
        ("", "RuntimeError"),
    ],
)
def test_what_openvino_says_is_told_without_positions_and_descriptions(text: str, told: str) -> None:
    assert one_line(RuntimeError(text)) == told


def test_our_own_errors_stay_whole() -> None:
    text = "a model of one line, " * 40
    assert one_line(UserError(text)) == text.strip()
    assert one_line("no such option") == "no such option"
