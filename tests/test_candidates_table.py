"""What commands print for people holds at 80 columns, says what its figures are, and names each candidate once."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ov_hsdag.cli import console, placed
from ov_hsdag.cli.candidates_table import Row, candidates_table, why_no_figure
from ov_hsdag.cli.commands import calibrate, devices
from ov_hsdag.model.placement import Placement

WHY = "failed: its outputs differ from those of CPU_A by 0.99 of their largest value"
ROWS = [
    Row("hsdag", 4, 199.0, note="not measured: others are predicted to be better"),
    Row("CPU_A", 1, 125.9, 144.2, 1.0, (1.0, 1.0)),
    Row("hetero-pipeline", 1, 125.9, 145.1, 1.004, (0.991, 1.013)),
    Row("pipeline", 2, 188.7, note=WHY),
    Row("mincut", note="left out: does not fit, needs 96 MiB of the 64 MiB on CPU_A"),
    Row("hsdag (less on CPU_A)", 4, 190.7, 266.1, 1.862, (1.801, 1.93), chosen=True),
    Row("hsdag (less on CPU_B)", 4, 190.7, 270.1, 1.9, (1.7, 2.1)),
]


@pytest.fixture(autouse=True)
def _eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def shown(capsys: pytest.CaptureFixture[str], text: str = "", **given: object) -> list[str]:
    with console.result(as_json=False) as show:
        show({}, text, **given)  # type: ignore[arg-type]
    return capsys.readouterr().out.splitlines()


def test_each_placer_has_one_row_and_a_line_in_the_legend(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = shown(capsys, table=candidates_table(ROWS, "throughput", measured=True))
    assert max(map(len, lines)) <= 80
    rows = [line.split() for line in lines if re.match(r"[* ] \w\S*  ", line)]
    assert [row[0] if row[0] != "*" else row[1] for row in rows] == [
        "hsdag", "CPU_A", "hetero-pipeline", "pipeline", "mincut"
    ]  # fmt: skip
    assert rows[0] == ["*", "hsdag", "4", "190.7", "266.1", "1.86", "(1.80", "to", "1.93)"]
    assert rows[1] == ["CPU_A", "1", "125.9", "144.2", "1.00"]
    text = " ".join(" ".join(lines).split())
    assert "hsdag: learned policy and local search, the best of 3 proposals." in text
    assert "mincut: minimum cut." in text and "* chosen." in text
    monkeypatch.setattr(console, "quiet", True)
    legend = next(number for number, line in enumerate(lines) if line.startswith("* chosen."))
    assert shown(capsys, table=candidates_table(ROWS, "throughput", measured=True)) == lines[:legend]
    # Cells go on in the next line, in their column; nothing is lost.
    last = [line[58:].strip() for line in lines]
    assert WHY in " ".join(last)


TWINS = [
    Row("CPU_A", 1, 125.9, gain=1.0, chosen=True),
    Row("hetero", 1, 125.9, gain=1.0, same_as="CPU_A"),
    Row("partitions", 2, 125.9, gain=1.0),
    Row("search", 2, 92.1, gain=0.73),
    Row("hsdag", 2, 125.9, gain=1.0, same_as="partitions"),
    Row("partitions (by profile)", 2, 120.0, gain=1.2),
    Row("hsdag (less on CPU_A)", 1, 125.9, gain=1.0, same_as="CPU_A"),
]


def test_equal_placements_are_one_row_and_all_of_them_with_verbose(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def table() -> list[str]:
        lines = shown(capsys, table=candidates_table(TWINS, "throughput", measured=False))
        return [" ".join(line.split()) for line in lines if re.match(r"[* ] \w\S*.*  \d", line)]

    assert table() == [
        "* CPU_A 1 125.9 1.00; also found by hetero, hsdag",
        "partitions 2 120.0 1.20",
        "search 2 92.1 0.73",
    ]
    monkeypatch.setattr(console, "verbose", True)
    assert len(table()) == len(TWINS)


def test_tables_that_are_piped_do_not_wrap(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS")
    lines = shown(capsys, table=candidates_table(ROWS, "throughput", measured=True))
    assert any(line.startswith("  pipeline") and line.rstrip().endswith(WHY) for line in lines)


def test_gains_of_the_table_and_of_the_headline_are_over_the_same_device(capsys: pytest.CaptureFixture[str]) -> None:
    placement = measured("CPU_A", [1.1, 1.3])
    assert placement.measured is not None
    placement.measured["CPU_B"] = {"failed": "there was no time left to measure it"}
    text = " ".join(" ".join(shown(capsys, table=placed.table(placement))).split())
    assert "x CPU_A: measured in turns" in text and "best single device" not in text
    assert "measured 1.00x CPU_A" in placement.summary()


def test_what_there_was_no_time_for_has_not_failed() -> None:
    assert why_no_figure({"failed": "too late", "failed_kind": "out of time"}) == "not measured: too late"
    assert why_no_figure({"failed": "it hangs", "failed_kind": "no answer"}) == "failed: it hangs"
    assert why_no_figure({"failed": None}) == why_no_figure({"failed": ""}) == why_no_figure({}) == ""


def test_kinds_of_failures_of_earlier_releases_follow_from_their_texts() -> None:
    old = {"failed": "CPU_A: there was no time left to measure it"}
    assert why_no_figure(old).startswith("not measured: CPU_A")
    assert why_no_figure({"failed": "it hangs"}) == "failed: it hangs"


def test_without_measuring_gains_are_predicted_ones(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [Row("mincut", 2, 5.0, gain=2.0, chosen=True), Row("CPU", 1, 10.0, gain=1.0), Row("experts", 3, 12.0)]
    lines = shown(capsys, table=candidates_table(rows, "latency", measured=False))
    assert lines[2].split() == ["*", "mincut", "2", "5.00", "2.00"]
    assert "x the best single device: predicted." in lines[5]
    assert "experts: experts of some layers on another device, all else on the first." in " ".join(lines)
    assert "measured" not in "".join(lines)


def test_square_brackets_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    why = "failed: Check 'input_shape[j] == 1' failed"
    rows = [Row("CPU_A", 1, 2.0, 2.0, 1.0), Row("mincut", 2, 1.0, note=why), Row("nodes[bold]", 2, 1.0)]
    text = " ".join(" ".join(shown(capsys, table=candidates_table(rows, "latency", measured=True))).split())
    assert "'input_shape[j] == 1'" in text and "nodes[bold]" in text


def test_an_interval_that_says_nothing_is_noise(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        Row("CPU_A", 1, 50.0, 60.0, 1.0, (1.0, 1.0)),
        Row("pipeline", 2, 90.0, 90.0, 1.5, (0.8, 2.8)),
        Row("hsdag", 7, 90.0, 45.0, 0.76, (0.0, 218.49)),
    ]
    text = " ".join(" ".join(shown(capsys, table=candidates_table(rows, "throughput", measured=True))).split())
    assert "0.76 (noise)" in text and "1.50 (0.80 to 2.80)" in text
    assert "noise: rounds are too few, or differ too much, to tell." in text
    calm = shown(capsys, table=candidates_table(rows[:2], "throughput", measured=True))
    assert "noise" not in " ".join(calm)


def measured(chosen: str, interval: list[float], failed: str | None = None) -> Placement:
    """CPU_A and a placement of hsdag's, whose gain has this interval; one of them is chosen."""
    other = {"throughput_ips": 14.0, "ratio": 1.2, "ci": interval, "times_best_single": 1.2}
    return Placement(
        devices=("CPU_A", "CPU_B"),
        affinity={},
        objective="throughput",
        baselines={name: {"throughput_ips": 10.0} for name in ("CPU_A", "CPU_B")},
        measured={
            "CPU_A": {
                "throughput_ips": 10.0,
                "ratio": 1.0,
                "ci": [1.0, 1.0],
                "times_best_single": 1.0,
                "failed": failed,
            },
            "hsdag (less on CPU_A)": {**other, "failed": failed},
        },
        chosen=chosen,
    )


def test_what_cannot_be_told_for_noise_comes_with_what_to_do() -> None:
    line = placed.unsure(replace(measured("CPU_A", [0.63, 1.42]), unsure=("hsdag",)))
    assert line.startswith("unsure: hsdag may be better") and "--measure-seconds" in line and "--no-measure" in line
    assert "(other programs used 1.4 cores" in placed.unsure(replace(measured("CPU_A", [1, 2]), unsure=("hsdag",)), 1.4)
    assert placed.unsure(measured("CPU_A", [0.9, 1.04]), busy=1.4) == ""


@pytest.mark.parametrize(
    ("said", "here", "expected"),
    [
        ("unsure: hsdag may be better", True, "ov-hsdag place model.onnx -d HETERO:CPU_A,CPU_B --no-measure"),
        ("costs: built-in profiles", True, "ov-hsdag verify out.xml --device HETERO:CPU_A,CPU_B"),
        ("costs: built-in profiles", False, "ov-hsdag explain out.xml"),
    ],
)
def test_what_comes_next(
    said: str, here: bool, expected: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["place", "model.onnx", "-d", "HETERO:CPU_A,CPU_B", "--measure"]
    monkeypatch.setattr(sys, "argv", ["ov-hsdag", *words])
    placed.show_what_next(console.Show(), {Path("out.xml"): [said]}, words[3], None, None, here)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"next: {expected}" and lines[0].startswith("run with: openvino.Core().compile_model('out.xml'")


def test_where_all_failed_gains_are_predicted_ones(capsys: pytest.CaptureFixture[str]) -> None:
    text = "\n".join(shown(capsys, table=placed.table(measured("CPU_A", [0.63, 1.42], failed="it hangs"))))
    assert "failed: it hangs" in text and "single device: predicted." in text


def test_lines_are_wrapped_between_words_and_names_stay_whole(capsys: pytest.CaptureFixture[str]) -> None:
    path = f"{'folder-' * 15}/model.xml:"
    lines = shown(capsys, text=f"{path} {'several words ' * 10}\nnext")
    assert lines[0] == path and lines[-1] == "next"
    assert max(map(len, lines[1:])) <= 80 and all(line.startswith("    ") for line in lines[1:-1])


def test_tables_of_devices_and_of_a_calibration(capsys: pytest.CaptureFixture[str]) -> None:
    found = {
        "name": "GPU.1",
        "full_name": "Intel(R) Data Center GPU Flex 170 (dGPU), a long name",
        "virtual": False,
        "precision": "f16",
        "profile_id": "cpu_core",
        "estimates": ["efficiency", "launch_us", "submodel_us", "link_us", "link_gbps", "memory_gbps"],
        "profile": "2 times: one CPU core without AMX (AVX2 or AVX-512, bf16 at twice the rate of f32)",
    }
    lines = shown(capsys, table=devices._table([found, {**found, "name": "CPU_A", "profile": None}]))
    assert max(map(len, lines)) <= 80
    assert lines[1].split()[:2] == ["GPU.1", "Intel(R)"] and lines[-1].strip() == "no profile"
    assert "cpu_core: 2 times: one CPU core" in " ".join(" ".join(lines).split())
    entry = {
        "precision": "bf16",
        "peak_gflops": {"value": {"bf16": 114688.0}},
        "efficiency": {"value": {"MatMul@bf16": 0.5}},
        **{key: {"value": 43.8} for key in ("launch_us", "submodel_us")},
        "gbps": {"value": {"default": 83.0}},
    }
    table = calibrate._table({"devices": {"CPU_A": entry}}, {"CPU_A": {"layers_error": 0.09}})
    lines = shown(capsys, table=table)
    assert max(map(len, lines)) <= 80
    assert lines[1].split() == ["CPU_A", "bf16", "57344", "83", "43.8", "43.8", "9%"]
    assert lines[2].startswith("launch: ")
