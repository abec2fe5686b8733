"""The command line as users run it: real processes, exit statuses, and what stands on which stream."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops
from typer.testing import CliRunner

import ov_hsdag
from ov_hsdag.cli import console
from ov_hsdag.cli.app import app
from ov_hsdag.cli.commands.place import default_output
from ov_hsdag.costs.profile import BUILTIN_DIRECTORY
from ov_hsdag.model.placement import Placement
from tests.commands import DEVICE, MAIN, PACKAGE, assert_one_error_line, ran, run, verified
from tests.conftest import GENEROUS, ONE_CORE
from tests.graphs import convolutions
from tests.processes import ended


@pytest.fixture(scope="module")
def placed(model: Path) -> tuple[Path, dict[str, Any]]:
    """A model that `place --json` has placed on both devices, and what it printed."""
    output = model.parent / "placed.xml"
    done = ran(
        "place", model, "--device", DEVICE, "--no-measure", "--objective", "throughput", "--output", output, "--json"
    )
    return output, json.loads(done.stdout)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where a failing command must leave nothing."""
    folder = tmp_path / "out"
    folder.mkdir()
    return folder / "out.xml"


class TestPlace:
    def test_writes_a_model_that_carries_what_it_printed(self, placed: tuple[Path, dict[str, Any]]) -> None:
        output, printed = placed
        embedded = Placement.of(ov.Core().read_model(output))
        assert embedded is not None
        assert embedded.affinity == printed["placement"]
        assert list(embedded.devices) == printed["devices"] == ["CPU_A", "CPU_B"]
        assert embedded.objective == printed["objective"] == "throughput"
        assert set(embedded.affinity.values()) == {"CPU_A", "CPU_B"}  # two equal devices

    def test_json_has_the_documented_keys_and_is_all_of_standard_output(
        self, placed: tuple[Path, dict[str, Any]]
    ) -> None:
        _, printed = placed
        assert set(printed) == {
            *("output", "placement", "devices", "objective"),
            *("predicted", "measured", "baselines", "policy", "chosen", "seconds"),
            *("why", "notes", "same_as", "unsure", "messages"),
        }
        assert {"latency_us", "throughput_ips", "memory_bytes", "submodels", "transfer_bytes"} <= set(
            printed["predicted"]
        )
        assert {"CPU_A", "CPU_B"} <= set(printed["baselines"]) | {printed["chosen"]}
        assert printed["measured"] is None

    @pytest.mark.slow
    @pytest.mark.usefixtures("quiet_machine")
    def test_measures_where_the_devices_are(self, model: Path, out: Path) -> None:
        done = ran("place", model, "--device", DEVICE, "--output", out, "--measure-seconds", GENEROUS, "--json")
        printed = json.loads(done.stdout)
        assert {"CPU_A", "CPU_B", "hetero"} <= set(printed["measured"])
        for figures in printed["measured"].values():
            assert figures["latency_us"] > 0 and figures["failed"] is None
        assert printed["chosen"] in printed["measured"]
        embedded = Placement.of(ov.Core().read_model(out))
        assert embedded is not None and embedded.measured == printed["measured"]

    @pytest.mark.slow
    @pytest.mark.usefixtures("quiet_machine")
    def test_text_tells_what_was_measured(self, model: Path, out: Path) -> None:
        options = ("--device", DEVICE, "--output", out, "--measure", "--measure-seconds", GENEROUS, "--verbose")
        done = ran("place", model, *options, COLUMNS="80")
        embedded = Placement.of(ov.Core().read_model(out))
        assert embedded is not None and embedded.measured
        text = " ".join(done.stdout.split())
        assert text.startswith(f"{out}: {embedded.summary()}")
        assert "measured" in embedded.summary()
        assert "x the best single device: measured in turns, with its 95% interval." in text
        rows = {match[2]: match for match in re.finditer(r"^(\*| ) (\S+)  .*$", done.stdout, re.MULTILINE)}
        for name, figures in embedded.measured.items():
            shown = [float(word) for word in rows[name][0].split() if re.fullmatch(r"[\d.]+", word)]
            assert pytest.approx(figures["latency_us"] / 1e3, rel=0.01) in shown
            assert re.search(rf"  {figures['times_best_single']:.2f}[ ;]", rows[name][0])
        (chosen,) = (name for name, match in rows.items() if match[1] == "*")
        assert chosen == embedded.chosen
        # The number of the headline is that of the chosen row.
        assert f"measured {embedded.measured[chosen]['times_best_single']:.2f}x the best single device" in text
        told, _, _ = done.stdout.replace(str(out), "out.xml").partition("next: ")  # a command is as long as it is
        assert max(map(len, told.splitlines())) <= 80

    def test_tells_why_nothing_was_measured_and_what_does_not_fit(self, model: Path, out: Path) -> None:
        done = ran(
            "place", model, "--device", "HETERO:GPU,NPU,CPU", "--output", out, "--memory", "GPU=1KiB", COLUMNS="80"
        )
        assert "\nnot measured: GPU, NPU are not on this machine\n" in done.stdout
        # What their costs are taken from.
        profiles = "iris_xe for GPU, npu_core_ultra for NPU, core_ultra_7_155h for CPU"
        assert f"costs: built-in profiles {profiles} (--profile gives others)" in " ".join(done.stdout.split())
        assert "costs assume" not in done.stdout
        text = " ".join(done.stdout.split())
        assert "left out: does not fit, needs" in text and "of the 1 KiB on GPU" in text
        assert "also found by" in text and "x the best single device: predicted." in text
        assert max(map(len, done.stdout.replace(str(out), "out.xml").splitlines())) <= 80

    def test_devices_that_are_not_here(self, model: Path, out: Path) -> None:
        done = run("place", model, "--device", "hetero:gpu.0,gpu.1,cpu", "--output", out)
        profiles = "arc_a770 for GPU.0, arc_a770 for GPU.1, core_ultra_7_155h for CPU"
        why = "GPUs that are not here count as discrete cards; --profile gives others"
        assert f"costs: built-in profiles {profiles} ({why})" in " ".join(done.stdout.split())
        assert f"compile_model('{out}', 'HETERO:GPU.0,GPU.1,CPU')" in done.stdout
        done = run("place", model, "--device", "HETERO:GPU.0,GPU_1,CPU", "--output", out)
        assert_one_error_line(done, 'unknown device "GPU_1"', "did you mean GPU or GPU.0?")

    def test_memory_limits(self, model: Path, out: Path) -> None:
        device = ("--device", "HETERO:GPU,CPU", "--output", out)
        assert_one_error_line(run("place", model, *device, "--memory", "GPU=2"), "memory limit 'GPU=2'", "GPU=2GiB")
        assert_one_error_line(run("place", model, *device, "--memory", "NPU=2GiB"), "'NPU'")
        done = run("place", model, *device, "--memory", "GPU=1KiB", "--json")
        assert set(json.loads(done.stdout)["placement"].values()) == {"CPU"}

    def test_sizes_that_are_guessed_are_told(self, out: Path, tmp_path: Path) -> None:
        source = tmp_path / "dynamic.xml"
        ids, image = (
            ops.parameter(ov.PartialShape(shape), np.float32, name=name)
            for name, shape in (("ids", [-1, -1]), ("image", [-1, 8]))
        )
        ov.save_model(ov.Model([ops.result(ops.relu(ids)), ops.result(ops.relu(image))], [ids, image]), source)
        device = ("--device", "HETERO:GPU,CPU", "--output", out)
        both = run("place", source, *device).stdout
        assert "\ncosts assume ids=[1,128], image=[1,8]; --shape assumes other sizes\n" in both
        one = run("place", source, *device, "--shape", "ids=[2,64]").stdout
        assert "\ncosts assume image=[2,8]; --shape assumes other sizes\n" in one
        assert "costs assume" not in run("place", source, *device, "--shape", "ids=[2,64],image=[4,8]").stdout

    @pytest.mark.parametrize("compressed", [True, False])
    def test_leaves_weights_as_they_are(self, compressed: bool, out: Path, tmp_path: Path) -> None:
        source = tmp_path / "model.xml"
        ov.save_model(convolutions(), source, compress_to_fp16=compressed)
        done = ran("place", source, "--device", DEVICE, "--no-measure", "--objective", "throughput", "--output", out)
        assert re.search(r"requests: keep \d+ in flight .*-nireq \d+\)", " ".join(done.stdout.split()))
        # Shared constants may be copied, so sizes are not equal; FP16 is half of f32.
        assert out.with_suffix(".bin").stat().st_size < 1.5 * source.with_suffix(".bin").stat().st_size
        image = np.random.default_rng(1).standard_normal((1, 3, 32, 32), dtype=np.float32)
        exact = {"INFERENCE_PRECISION_HINT": "f32"}
        plain, with_placement = (ov.Core().compile_model(path, "CPU", exact)(image)[0] for path in (source, out))
        np.testing.assert_allclose(with_placement, plain, rtol=1e-6, atol=1e-6)


class TestVerify:
    def test_agrees_with_each_single_device(self, placed: tuple[Path, dict[str, Any]]) -> None:
        done = ran("verify", placed[0], "--device", DEVICE, "--json")
        printed = json.loads(done.stdout)
        assert sorted(printed["devices"]) == ["CPU_A", "CPU_B"]
        assert printed["submodels"] == placed[1]["predicted"]["submodels"] > 1
        assert set(printed["relative_errors"]) == {"CPU_A", "CPU_B"}
        assert printed["max_relative_error"] == max(printed["relative_errors"].values()) < 1e-5
        assert printed["equal"] is True

    def test_status_1_where_a_device_was_replaced(self, model: Path, out: Path, tmp_path: Path) -> None:
        (tmp_path / "affinity.json").write_text('{"stem": "GPU", "sum": "CPU"}')
        options = ("--device", "HETERO:GPU,CPU", "--affinity", tmp_path / "affinity.json", "--output", out)
        assert run("place", model, *options).returncode == 0
        done = run("verify", out, "--device", "HETERO:GPU,CPU", "--json")
        assert done.returncode == 1, done.stderr
        printed = json.loads(done.stdout)
        assert (printed["devices"], printed["equal"], printed["followed"]) == (["CPU"], None, False)
        assert printed["verified"] is False and "GPU" in printed["reasons"][0]
        assert done.stderr.startswith("warning: ") and "GPU" in done.stderr
        text = run("verify", out, "--device", "HETERO:GPU,CPU").stdout
        assert "NOT VERIFIED: the placement uses GPU" in text and "agree" not in text

    def test_not_verified_where_the_placement_is_of_another_model(
        self, placed: tuple[Path, dict[str, Any]], tmp_path: Path
    ) -> None:
        loaded = ov.Core().read_model(placed[0])
        loaded.set_rt_info('["elsewhere"]', ["ov_hsdag", "default_nodes"])
        loaded.set_rt_info("{}", ["ov_hsdag", "exceptions"])
        ov.save_model(loaded, tmp_path / "odd.xml", compress_to_fp16=False)
        done = run("verify", tmp_path / "odd.xml", "--device", DEVICE)
        assert done.returncode == 1, done.stderr
        assert "NOT VERIFIED: the placement knows none of the model's nodes" in done.stdout
        assert "agree" not in done.stdout

    def test_not_verified_where_completing_the_placement_fails(
        self, placed: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*arguments: object) -> None:
            raise ZeroDivisionError("a bug of ours")

        monkeypatch.setattr("ov_hsdag.model.complete.complete", broken)
        done = run("verify", placed[0], "--device", DEVICE)
        assert done.returncode == 1
        assert "NOT VERIFIED: the model was compiled without its placement: a bug of ours" in done.stdout

    def test_not_verified_where_outputs_are_not_finite(self, tmp_path: Path) -> None:
        image = ops.parameter([1, 8], np.float32, name="image")
        root = ops.sqrt(ops.minimum(image, ops.constant(np.float32(-1))), name="root")
        found = verified(ov.Model([ops.result(root, name="nan"), ops.result(ops.relu(image))], [image]), tmp_path)
        assert "NOT VERIFIED: no value is finite in nan" in found and "agree" not in found

    def test_nan_in_the_same_places_is_agreement(self, tmp_path: Path) -> None:
        image = ops.parameter([8, 8], np.float32, name="image")
        root = ops.log(ops.subtract(image, ops.constant(np.float32(0.5))), name="root")  # of negative numbers as well
        found = verified(ov.Model([ops.result(ops.add(root, image), name="some")], [image]), tmp_path, status=0)
        assert "outputs agree" in found
        assert "NaN or infinite in the same places as on one device: values of some" in found

    def test_not_verified_where_outputs_are_constant(self, tmp_path: Path) -> None:
        image = ops.parameter([1, 8], np.float32, name="image")
        zero = ops.relu(ops.minimum(image, ops.constant(np.float32(-1))))
        found = verified(ov.Model([ops.result(zero)], [image]), tmp_path)
        assert "NOT VERIFIED: no output changed with the inputs that were tried" in found and "agree" not in found

    def test_computes_as_deployed_unless_f32_is_asked_for(self, placed: tuple[Path, dict[str, Any]]) -> None:
        rough = {"OV_HSDAG_VIRTUAL_DEVICES": "CPU_A:INFERENCE_PRECISION_HINT=bf16;CPU_B:INFERENCE_PRECISION_HINT=f32"}
        deployed = ran("verify", placed[0], "--device", DEVICE, "--json", **rough)
        printed = json.loads(deployed.stdout)
        exact = json.loads(run("verify", placed[0], "--device", DEVICE, "--json", "--precision", "f32", **rough).stdout)
        assert exact["precision"] == {"CPU_A": "f32", "CPU_B": "f32"}
        assert exact["tolerance"] < 1e-2 and exact["max_relative_error"] < 1e-5
        if printed["precision"]["CPU_A"] == "bf16":  # not every CPU has it
            assert 1e-1 > printed["tolerance"] > printed["max_relative_error"] > 1e-4
        text = run("verify", placed[0], "--device", DEVICE).stdout
        assert "computed on CPU_A in f32, CPU_B in f32" in text
        assert_one_error_line(run("verify", placed[0], "--device", DEVICE, "--precision", "f8"), "f8", "f32")

    def test_refuses_when_placements_are_switched_off(self, placed: tuple[Path, dict[str, Any]]) -> None:
        assert_one_error_line(run("verify", placed[0], "--device", DEVICE, OV_HSDAG_DISABLE="1"), "OV_HSDAG_DISABLE")

    def test_a_crash_of_openvino_ends_as_errors_do(self, placed: tuple[Path, dict[str, Any]]) -> None:
        code = """
            import os
            import ov_hsdag.measuring.verification_runs as verification_runs
            verification_runs._run_sequence = lambda *arguments: os.abort()
            from ov_hsdag.cli import main
            main()
        """
        done = run("verify", placed[0], "--device", DEVICE, code=textwrap.dedent(code))
        assert done.returncode == 1 and done.stdout == ""
        assert f"error: running {placed[0]} on {DEVICE} ended with SIGABRT, a fault of OpenVINO" in done.stderr

    def test_what_was_found_stands_where_openvino_crashes_at_the_end(self, placed: tuple[Path, dict[str, Any]]) -> None:
        code = """
            import atexit, os
            import ov_hsdag.measuring.verification_runs as verification_runs
            run = verification_runs._run_sequence
            def crashing(*arguments):
                atexit.register(os.abort)
                return run(*arguments)
            verification_runs._run_sequence = crashing
            from ov_hsdag.cli import main
            main()
        """
        done = run("verify", placed[0], "--device", DEVICE, code=textwrap.dedent(code))
        assert done.returncode == 0 and "outputs agree" in done.stdout and "SIGABRT" not in done.stderr

    def test_a_process_that_has_openvino_already_is_not_forked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from ov_hsdag.cli.child_process import continue_in_child

        monkeypatch.setattr(os, "fork", lambda: pytest.fail("its threads would be missing in a child"), raising=False)
        assert "openvino" in sys.modules
        continue_in_child("running a model")

    @pytest.mark.slow
    @pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a child survives a parent that is killed")
    def test_no_process_is_left_behind(self, placed: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
        code = f"""
            import os, signal, time
            signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it
            import ov_hsdag.measuring.verification_runs as verification_runs
            def hang(*arguments):
                with open({str(tmp_path / "pid")!r}, "w") as file:
                    file.write(f"{{os.getpid()}} {{os.getppid()}}")
                time.sleep(60)
            verification_runs._run_sequence = hang
            from ov_hsdag.cli import main
            main()
        """
        for signalled, status in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)):
            (tmp_path / "pid").write_text("")
            with ThreadPoolExecutor() as threads:
                ended = threads.submit(run, "verify", placed[0], "--device", DEVICE, code=textwrap.dedent(code))
                while not (pids := (tmp_path / "pid").read_text().split()) and not ended.done():
                    time.sleep(0.05)
                child, parent = map(int, pids)
                os.kill(parent, signalled)
                assert ended.result().returncode == status
            wait_until_gone(child)

    def test_status_1_when_no_device_is_there(self, placed: tuple[Path, dict[str, Any]]) -> None:
        assert_one_error_line(run("verify", placed[0], "--device", "HETERO:GPU,NPU"), "HETERO:GPU,NPU", status=1)


def test_python_verifies_as_the_command_does(placed: tuple[Path, dict[str, Any]], two_cpu_core: ov.Core) -> None:
    model = two_cpu_core.read_model(placed[0])
    done = ov_hsdag.verify(model, core=two_cpu_core)
    assert done.good and done.result["device"] == DEVICE and done.result["equal"]
    assert repr(done).startswith(f"{DEVICE} runs on ") and len(repr(done)) < 1000
    done.result |= {"tolerance": 0.0699, "rounding": 0.0233}
    told = "outputs agree (within 0.07, as single devices differ from f32 by 0.023; --precision f32 compares more"
    assert f"{told} strictly)" in repr(done).splitlines()
    with pytest.raises(ov_hsdag.UserError, match="no placement"):
        ov_hsdag.verify(convolutions(), DEVICE)


class TestDevices:
    def test_lists_virtual_and_real_devices_with_their_profiles(self) -> None:
        done = ran("devices", "--json")
        found = {device["name"]: device for device in json.loads(done.stdout)["devices"]}
        assert {"CPU", "CPU_A", "CPU_B"} <= set(found)
        assert found["CPU_A"]["virtual"] and not found["CPU"]["virtual"]
        assert all(found[name]["full_name"] and found[name]["profile"] for name in ("CPU", "CPU_A", "CPU_B"))
        assert {found[name]["profile_id"] for name in ("CPU_A", "CPU_B")} <= {"cpu_core", "cpu_core_amx"}
        assert {"efficiency", "submodel_us"} <= set(found["CPU_A"]["estimates"])

    @pytest.mark.parametrize("environment", [{}, {"OV_HSDAG_DISABLE": "1"}])
    def test_text(self, environment: dict[str, str]) -> None:
        done = ran("devices", COLUMNS="80", **environment)
        assert "CPU_B" in done.stdout
        assert "cpu_core" in done.stdout and "efficiency" in done.stdout
        assert max(map(len, done.stdout.splitlines())) <= 80


class TestStrip:
    def test_removes_the_placement_and_nothing_else(self, placed: tuple[Path, dict[str, Any]], out: Path) -> None:
        done = run("strip", placed[0], "--output", out)
        assert (done.returncode, done.stderr) == (0, "")
        assert " ".join(done.stdout.split()) == f"{out}: {placed[0]} without its placement"
        stripped, source = ov.Core().read_model(out), ov.Core().read_model(placed[0])
        assert Placement.of(stripped) is None
        assert b"ov_hsdag" not in out.read_bytes()
        assert [op.get_friendly_name() for op in stripped.get_ops()] == [
            op.get_friendly_name() for op in source.get_ops()
        ]

    @pytest.mark.parametrize(
        ("text", "broken"),
        [('<devices value="[', '<devices value="{'), ('<version value="1"', '<version value="99"')],
        ids=["unreadable", "newer"],
    )
    def test_removes_one_that_cannot_be_read(
        self, text: str, broken: str, placed: tuple[Path, dict[str, Any]], out: Path, tmp_path: Path
    ) -> None:
        source = placed[0].read_text()
        assert source.count(text) == 1
        (tmp_path / "odd.xml").write_text(source.replace(text, broken))
        (tmp_path / "odd.bin").write_bytes(placed[0].with_suffix(".bin").read_bytes())
        done = run("strip", tmp_path / "odd.xml", "--output", out)
        assert (done.returncode, done.stderr) == (0, "")
        assert b"ov_hsdag" not in out.read_bytes()

    def test_says_when_there_was_none(self, model: Path, out: Path) -> None:
        done = run("strip", model, "--output", out)
        assert done.returncode == 0
        assert "carries no placement" in done.stderr
        assert out.exists()


class TestBadModel:
    @pytest.mark.parametrize("command", ["place", "verify", "strip"])
    def test_every_command_that_reads_a_model_checks_it(
        self, command: str, model: Path, out: Path, tmp_path: Path
    ) -> None:
        cut = tmp_path / "cut.xml"
        cut.write_text(model.read_text()[:1000])
        options = [] if command == "strip" else ["--device", DEVICE]
        options += [] if command == "verify" else ["--output", str(out)]
        assert_one_error_line(run(command, tmp_path / "missing.onnx", *options), "no such model", "missing.onnx")
        assert_one_error_line(run(command, cut, *options), f"cannot read {cut}")
        assert list(out.parent.iterdir()) == []

    @pytest.mark.parametrize("name", ["notes.md", "notes.onnx", "notes.xml", "notes"])
    def test_a_file_that_is_no_model(self, name: str, out: Path, tmp_path: Path) -> None:
        (tmp_path / name).write_text("# Notes\n\nThis is a text.\n")
        refused(tmp_path / name, out, "no IR, ONNX")

    def test_an_ir_without_its_weights(self, model: Path, out: Path, tmp_path: Path) -> None:
        (tmp_path / "alone.xml").write_text(model.read_text())
        refused(tmp_path / "alone.xml", out, "cannot read", "bin file")


@pytest.mark.parametrize("call", [ov_hsdag.place, ov_hsdag.fit, ov_hsdag.verify, ov_hsdag.explain])
@pytest.mark.parametrize("given", ["model.xml", Path("model.xml"), None])
def test_what_is_no_model_in_memory_is_refused_alike(call: Any, given: object) -> None:
    name = call.__name__
    told = rf"^{name}\(\) takes a model in memory and got .*: read it with openvino\.convert_model or Core\.read_model"
    with pytest.raises(ov_hsdag.UserError, match=told + f"; ov-hsdag {name} takes files"):
        call(given, DEVICE)


def test_a_pass_refuses_at_once_what_names_no_devices() -> None:
    with pytest.raises(ov_hsdag.UserError, match="device 3 is not a HETERO device list"):
        ov_hsdag.HSDAGPlacement(device=3)  # type: ignore[arg-type]


class _Twice(Exception):
    """As some releases of typer and click say it together."""

    def format_message(self) -> str:
        return "No such command 'plce'. Did you mean 'place'? Did you mean 'place'?"


def test_a_command_that_does_not_exist_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert console.fail(_Twice(), 2) == 2
    assert capsys.readouterr().err == "error: No such command 'plce'. Did you mean 'place'?\n"
    assert run("plce").stderr.count("Did you mean") == 1


class TestBadOptions:
    def test_end_in_one_line(self, model: Path, out: Path) -> None:
        refused(model, out, "TPU", device="HETERO:TPU,CPU")
        for option in ("--colour", "--affinity", "--profile"):
            refused(model, out, "--colour" if option == "--colour" else "missing.json", more=(option, "missing.json"))
        refused(model, out.with_suffix(".onnx"), ".xml")
        out.mkdir()
        refused(model, out, "directory")

    @pytest.mark.skipif(sys.platform != "linux", reason="needs /proc, where not even root can create a file")
    def test_output_directory_that_refuses_files(self, model: Path) -> None:
        done = run("place", model, "--device", DEVICE, "--no-measure", "--output", "/proc/out.xml")
        assert_one_error_line(done, "cannot write", "/proc/out.xml")


def gpu_and_npu_profile(**changes: object) -> dict[str, Any]:
    """A profile of GPU and NPU from built-in ones, whose figures for the GPU are changed."""
    gpu, npu = (json.loads((BUILTIN_DIRECTORY / f"{stem}.json").read_text()) for stem in ("iris_xe", "npu_core_ultra"))
    (gpu_figures,), (npu_figures,) = gpu["devices"].values(), npu["devices"].values()
    return {**gpu, "devices": {"GPU": {**gpu_figures, **changes}, "NPU": npu_figures}}


class TestProfile:
    def test_decides_what_devices_that_are_not_there_support(self, model: Path, out: Path, tmp_path: Path) -> None:
        (tmp_path / "profile.json").write_text(json.dumps(gpu_and_npu_profile(unsupported=["Add"])))
        options = ("--device", "HETERO:GPU,NPU", "--profile", tmp_path / "profile.json")
        done = ran("place", model, *options, "--output", out, "--json")
        assert json.loads(done.stdout)["placement"]["sum"] == "NPU"
        (tmp_path / "app.toml").write_text(f'[models.a]\npath = "{model}"\n')
        ran("plan", tmp_path / "app.toml", *options, "--no-measure", "--output", tmp_path / "plan")
        for made in (out, tmp_path / "plan" / "plan.json"):
            assert "was made with the profile profile.json" in ran("explain", made).stderr
        # What a model was timed at is in relation to that profile.
        data, slow = json.loads(made.read_text()), made.with_name("slow.json")
        data["models"]["a"]["timed"] = {"GPU": 3.0, "NPU": 3.0}
        slow.write_text(json.dumps(data))
        for profile, factor in ((options[2:], 3.0), ((), 1.0)):
            busy = [
                json.loads(ran("explain", plan, *profile, "--json").stdout)["models"]["a"]["busy_us"].values()
                for plan in (slow, made)
            ]
            assert sum(busy[0]) == pytest.approx(factor * sum(busy[1]), rel=1e-3) and sum(busy[1]) > 0


INTERRUPTED = """
import os, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started the tests with the signal ignored

class CtrlC:
    def find_spec(name, path=None, target=None):
        if name == {module!r}:
            if {native!r}:
                try:
                    raise KeyboardInterrupt
                except KeyboardInterrupt as error:  # as pybind11 does where a module's initialisation is interrupted
                    raise ImportError("initialization failed") from error
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, CtrlC)
from ov_hsdag.cli import main
main()
"""

NO_TEMPORARY_DIRECTORY = """
import tempfile
tempfile._candidate_tempdir_list = lambda: ["/proc/nowhere"]
from ov_hsdag.cli import main
main()
"""


class TestSurroundings:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("module", "native"),
        [*((name, False) for name in ("typer", "numpy", "openvino", "ov_hsdag.placing.place")), ("openvino", True)],
    )
    def test_interrupted_while_it_starts(self, model: Path, out: Path, module: str, native: bool) -> None:
        code = INTERRUPTED.format(module=module, native=native)
        done = run("place", model, "--device", DEVICE, "--no-measure", "--output", out, code=code)
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")
        assert not out.exists()

    @pytest.mark.slow
    def test_no_directory_for_temporary_files(self, model: Path, out: Path) -> None:
        """As in a container that runs with --read-only, where only the output's folder can be written to."""
        options = ("--device", DEVICE)
        placed = run("place", model, *options, "--no-measure", "--output", out, code=NO_TEMPORARY_DIRECTORY)
        assert (placed.returncode, placed.stderr) == (0, "")
        verified = run("verify", out, *options, code=NO_TEMPORARY_DIRECTORY)
        assert (verified.returncode, verified.stderr) == (0, "")
        stripped = run("strip", out, "--output", out.with_name("plain.xml"), code=NO_TEMPORARY_DIRECTORY)
        assert (stripped.returncode, stripped.stderr) == (0, "")

    @pytest.mark.slow
    def test_nothing_is_measured_without_temporary_files(self, model: Path, out: Path) -> None:
        """With a warning where measuring is the default, and with an error before any work where it was asked for."""
        options = ("--device", DEVICE, "--output", out)
        asked = run("place", model, *options, "--measure", code=NO_TEMPORARY_DIRECTORY)
        assert_one_error_line(asked, "measuring needs a temporary folder (TMPDIR)", status=1)
        assert not out.exists()
        placed = ran("place", model, *options, "--json", code=NO_TEMPORARY_DIRECTORY)
        assert json.loads(placed.stdout)["measured"] is None
        (line,) = placed.stderr.splitlines()
        assert line.startswith("warning: nothing is measured, the placement is chosen by prediction: measuring needs a")
        benched = run("bench", model, "--device", DEVICE, code=NO_TEMPORARY_DIRECTORY)
        assert_one_error_line(benched, "measuring needs a temporary folder (TMPDIR)", status=1)

    @pytest.mark.slow
    @pytest.mark.parametrize("more", [(), ("--json",)])
    def test_long_work_is_told_where_there_is_no_terminal(self, model: Path, out: Path, more: tuple[str, ...]) -> None:
        """Every ten seconds; here, every tenth of one."""
        code = f"from ov_hsdag.utils import progress; progress.EVERY = 0.1; {MAIN}"
        done = ran("place", model, "--device", DEVICE, "--output", out, "--measure-seconds", 4, *more, code=code)
        lines = re.findall(rf"^\d+ s: placing {re.escape(str(model))} on {DEVICE}(?:: .+)?$", done.stderr, re.MULTILINE)
        assert len(lines) > 5
        assert any("measuring" in line for line in lines)
        assert "placing" not in done.stdout

    @pytest.mark.slow
    @pytest.mark.skipif(os.name == "nt", reason="needs a shell that closes descriptors")
    @pytest.mark.parametrize("closed", ["2>&-", ">&- 2>&- <&-"])
    def test_closed_streams(self, model: Path, out: Path, closed: str) -> None:
        place = ("place", model, "--device", DEVICE, "--no-measure", "--output", out)
        shell = f'exec "{sys.executable}" "$@" {closed}'
        environment = {**os.environ, "PYTHONPATH": PACKAGE, "OV_HSDAG_VIRTUAL_DEVICES": f"CPU_A:{ONE_CORE};CPU_B"}
        command = ("sh", "-c", shell, "sh", "-c", "import os; " + MAIN)
        done = ended(*command, *place, env=environment)
        assert Placement.of(ov.Core().read_model(out)) is not None
        if ">&-" not in closed.replace("2>&-", ""):
            assert "CPU_A" in done.stdout
        ended(*command, "strip", "missing.xml", "--output", out, status=2, env=environment)

    @pytest.mark.parametrize("encoding", ["cp1252", pytest.param("ascii", marks=pytest.mark.slow)])
    def test_consoles_that_lack_characters(self, model: Path, out: Path, encoding: str) -> None:
        output = out.with_name("модель→.xml")
        place = ("place", model, "--device", DEVICE, "--no-measure", "--output", output)
        done = run(*place, PYTHONIOENCODING=encoding)
        assert (done.returncode, done.stderr) == (0, "")
        assert "\\u043c" in done.stdout and output.exists()
        missing = run("strip", out.with_name("нет.xml"), "--output", output, PYTHONIOENCODING=encoding)
        assert_one_error_line(missing, "no such model")

    def test_files_that_begin_with_a_byte_order_mark(self, model: Path, out: Path, tmp_path: Path) -> None:
        """As PowerShell writes them."""
        affinity, profile = tmp_path / "affinity.json", tmp_path / "profile.json"
        affinity.write_text('{"stem": "GPU", "sum": "NPU"}', encoding="utf-8-sig")
        profile.write_text(json.dumps(gpu_and_npu_profile()), encoding="utf-8-sig")
        options = ("--affinity", affinity, "--profile", profile, "--output", out, "--json")
        done = ran("place", model, "--device", "HETERO:GPU,NPU", *options)
        assert json.loads(done.stdout)["placement"]["sum"] == "NPU"


class TestDebug:
    def test_shows_the_traceback(self, model: Path, out: Path) -> None:
        done = run("place", model, "--device", "HETERO:CPU", "--output", out, "--debug")
        assert done.returncode == 2
        assert "Traceback (most recent call last)" in done.stderr
        assert done.stderr.splitlines()[-1].startswith("error: ")


def refused(model: Path, out: Path, *words: str, device: str = DEVICE, more: tuple[object, ...] = ()) -> None:
    """Asserts that placing ends with one line that holds the words, and leaves no file."""
    before = sorted(out.parent.iterdir())
    assert_one_error_line(run("place", model, "--device", device, "--output", out, *more), *words)
    assert sorted(out.parent.iterdir()) == before


def wait_until_gone(process: int) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{process}/stat").read_text().split()[2] == "Z":
                return
        except OSError:
            return
        time.sleep(0.05)
    raise AssertionError(f"process {process} is still there")


COMMANDS = ("place", "verify", "devices", "calibrate", "bench", "finetune", "pretrain", "extension", "strip")


class TestConventions:
    def test_the_version_is_the_packages(self) -> None:
        done = run("--version")
        assert (done.returncode, done.stdout, done.stderr) == (0, f"ov-hsdag {ov_hsdag.__version__}\n", "")

    @pytest.mark.parametrize(
        "command", [(), *((name,) for name in COMMANDS)], ids=lambda words: words[0] if words else ""
    )
    def test_every_command_has_h(self, command: tuple[str, ...]) -> None:
        short, long = CliRunner().invoke(app, [*command, "-h"]), CliRunner().invoke(app, [*command, "--help"])
        assert short.exit_code == 0 and short.output == long.output
        assert "-h, --help" in short.output
        if not command:
            assert "Decide on which device" in short.output and "--version" in short.output
            assert all(name in short.output for name in COMMANDS)

    @pytest.mark.parametrize(
        ("option", "short", "commands"),
        [
            ("--device", "-d", ("place", "verify", "calibrate", "bench", "finetune")),
            ("--output", "-o", ("place", "calibrate", "bench", "finetune", "pretrain", "strip")),
        ],
    )
    def test_common_options_have_short_names(self, option: str, short: str, commands: tuple[str, ...]) -> None:
        for name in COMMANDS:
            words = CliRunner().invoke(app, [name, "--help"]).output.replace(",", " ").split()
            assert (option in words) == (short in words) == (name in commands), name

    def test_the_model_may_be_given_as_an_option(self, model: Path, out: Path) -> None:
        for name in COMMANDS:
            takes_one = name in ("place", "verify", "calibrate", "bench", "finetune", "strip")
            assert ("-m" in CliRunner().invoke(app, [name, "--help"]).output.replace(",", " ").split()) == takes_one
        for words in (("-m", model), ("--model", model), (f"--model={model}",)):
            assert run("strip", *words, "-o", out).returncode == 0
        ran("place", "-d", DEVICE, "-o", out, "--no-measure", "-m", model)
        for wrong in (("-m",), ("-m", model, model)):
            assert_one_error_line(run("verify", *wrong, "-d", DEVICE), "argument")

    def test_a_placed_model_has_a_name_by_default(
        self, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In the current directory, as ovc has it; the model is not touched."""
        (tmp_path / "models.d").mkdir()
        link = tmp_path / "models.d" / "link.v1.xml"
        link.symlink_to(model)
        monkeypatch.chdir(tmp_path)
        done = ran("place", link, "-d", DEVICE, "--no-measure", "--json")
        assert json.loads(done.stdout)["output"] == "link.v1_placed.xml"
        assert {path.name for path in tmp_path.iterdir()} == {"models.d", "link.v1_placed.xml", "link.v1_placed.bin"}
        assert link.is_symlink() and [*link.parent.iterdir()] == [link]
        for source, name in ((link.parent, "models.d_placed"), (Path("a/b.onnx"), "b_placed.xml")):
            assert str(default_output(source)) == name
        assert str(default_output(Path("."))) == f"{Path.cwd().name}_placed"
        (link.parent / "saved_model.pb").touch()
        assert str(default_output(link.parent)) == "models.d_placed.xml"

    def test_weights_are_written_as_asked(self, model: Path, tmp_path: Path) -> None:
        """By default as they are; compressed, the file keeps its placement and runs as placed."""
        exact, half, wide = (tmp_path / f"{name}.xml" for name in ("exact", "half", "wide"))
        for source, output, options in (
            (model, exact, ()),
            (model, half, ("--compress-to-fp16",)),
            (half, wide, ("--no-compress-to-fp16",)),
        ):
            done = ran("place", source, "-d", DEVICE, "-o", output, "--no-measure", *options)
        size = {path: path.with_suffix(".bin").stat().st_size for path in (exact, half, wide)}
        assert size[half] < 0.6 * size[exact] and size[wide] > 0.9 * size[exact]
        done = run("verify", half, "-d", DEVICE)
        assert done.returncode == 0, done.stderr + done.stdout
