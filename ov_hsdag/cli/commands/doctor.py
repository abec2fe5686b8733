"""`ov-hsdag doctor`: whether this machine is ready, and what to do about what is not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ov_hsdag._env import DISABLE, disabled
from ov_hsdag._version import __version__
from ov_hsdag.cli import _common as common
from ov_hsdag.cli import console
from ov_hsdag.cli.command import Command
from ov_hsdag.cli.command_lines import first_placing, in_order
from ov_hsdag.costs.builtin import builtin_profile
from ov_hsdag.devices.cores import SharedCores
from ov_hsdag.devices.cpu import busy_cores, usable_cores
from ov_hsdag.devices.device_set import TRY_OUT
from ov_hsdag.devices.discovery import available, free_bytes, memory_bytes, uses_host_memory
from ov_hsdag.devices.virtual import new_core
from ov_hsdag.integration.extension import extension_path
from ov_hsdag.policy import bundle, tuned
from ov_hsdag.storage.scratch import require_temporary_folder
from ov_hsdag.utils.byte_sizes import format_bytes
from ov_hsdag.utils.errors import RunError, UserError, one_line

if TYPE_CHECKING:
    import openvino as ov

OK, NOTE, PROBLEM = "ok", "note", "problem"

# Kind of device for OpenVINO, folder and pattern of its device nodes on Linux, and the driver that OpenVINO needs.
_HARDWARE = (
    ("GPU", "/dev/dri", "renderD*", "Intel's compute runtime (Debian, Ubuntu: apt-get install intel-opencl-icd)"),
    ("NPU", "/dev/accel", "accel*", "Intel's NPU driver (github.com/intel/linux-npu-driver)"),
)

# Prints whether a new process of this Python extends OpenVINO with the hook.
_PROBE = "import openvino; print(hasattr(openvino.Core.compile_model, '__wrapped__'))"


@dataclass(frozen=True)
class Check:
    """The result of one check, a line of the diagnosis."""

    what: str  # the subject: "devices"
    state: str  # "ok", "note" (works, with a limit worth knowing) or "problem"
    found: str  # the finding
    fix: str = ""  # the remedy; "" where nothing is needed


def doctor(as_json: common.Json = False) -> None:
    """Check whether this machine is ready, with a fix for each thing that is not.

    Exit status: 0 ready (notes may limit what can be done), 1 there are problems.
    """
    with console.result(as_json) as show:
        with console.progress("looking at this machine"):
            checks = list(diagnosis())
        bad = sum(check.state == PROBLEM for check in checks)
        verdict = "ready" if not bad else f"{bad} problem{'s' if bad > 1 else ''}"
        marks = {OK: "", NOTE: "note, ", PROBLEM: "PROBLEM, "}
        parts = []
        for check in checks:
            parts.append(f"{marks[check.state]}{check.what}: {check.found}")
            if check.fix:
                parts.append(f"{console.CODE}fix: {check.fix}")
        show({"ready": not bad, "checks": [asdict(check) for check in checks]}, "\n".join([verdict, *parts]))
        if bad:
            show.next("doctor")
        else:
            show.hint("next", first_placing(available(new_core())))
    if bad:
        raise typer.Exit(1)


def diagnosis() -> Iterator[Check]:
    """Runs all checks, in an order in which later ones may rely on earlier ones; only the first without OpenVINO."""
    try:
        import openvino as ov
    except ImportError as error:
        yield Check("versions", PROBLEM, f"OpenVINO cannot be imported: {one_line(error)}", "pip install openvino")
        return
    python = ".".join(map(str, sys.version_info[:3]))
    yield Check("versions", OK, f"ov-hsdag {__version__}, OpenVINO {ov.__version__.partition('-')[0]}, Python {python}")
    yield _hook()

    try:
        core = new_core()
    except UserError as error:
        yield Check("virtual devices", PROBLEM, one_line(error), "correct or unset OV_HSDAG_VIRTUAL_DEVICES")
        return
    yield from _devices(core)
    yield _profiles(core)
    yield _memory(core)
    yield _measuring()
    yield _policy(core)
    yield _extension()


def _hook() -> Check:
    what = "hook"
    if disabled():
        return Check(what, PROBLEM, f"{DISABLE} is set, placements are ignored", f"unset {DISABLE}")
    done = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, check=False)
    if done.stdout.strip() == "True":
        return Check(what, OK, "compile_model on HETERO follows placements in every program of this Python")
    fix = (
        "python -m ov_hsdag SCRIPT, or import ov_hsdag in it, or install into an environment that processes .pth files"
    )
    return Check(what, PROBLEM, "new processes of this Python do not extend OpenVINO", fix)


def _devices(core: ov.Core) -> Iterator[Check]:
    devices = available(core)
    real = [device for device in devices if not device.virtual]
    text = ", ".join(f"{device.name} ({device.full_name or 'no name'})" for device in real)
    yield Check("devices", OK if real else PROBLEM, text or "OpenVINO sees none", "" if real else "reinstall openvino")
    kinds = {device.kind for device in real}
    for kind, folder, pattern, driver in _HARDWARE:
        nodes = sorted(Path(folder).glob(pattern)) if kind not in kinds and os.path.isdir(folder) else []
        if not nodes:
            continue
        if not os.access(nodes[0], os.R_OK | os.W_OK):
            fix = f"add the user to the group of {nodes[0]} (render), or give the container the device"
            yield Check(kind, PROBLEM, f"{nodes[0]} is there and may not be opened", fix)
        else:
            yield Check(kind, PROBLEM, f"{nodes[0]} is there and OpenVINO sees no {kind}", f"install {driver}")
    cards = [one.name for one in real if one.kind == "GPU" and not uses_host_memory(core, one.name)]
    if len(cards) > 1:
        text = f"copies between {' and '.join(cards)} crash with some cards (openvino#37692, openvino#38253)"
        yield Check("two GPUs", NOTE, text, f"ov-hsdag verify tells; if it crashes, place for HETERO:{cards[0]},CPU")
    virtual = [device.name for device in devices if device.virtual]
    shared = SharedCores.of(core, virtual)
    if shared is not None:
        fix = "declare no more threads than cores, or let the process use more (taskset, the container's CPU limit)"
        yield Check("virtual devices", NOTE, f"{', '.join(virtual)}; {shared.describe()}", fix)
    elif virtual:
        yield Check("virtual devices", OK, ", ".join(virtual))
    elif len(real) < 2:
        yield Check("virtual devices", NOTE, "none, and HETERO has nothing to split on one device", TRY_OUT)


def _profiles(core: ov.Core) -> Check:
    names = in_order(available(core))
    parts, guessed = [], False
    for name in names:
        try:
            profile = builtin_profile([name], core).device(name)
        except UserError:
            parts.append(f"{name}: none")
            guessed = True
            continue
        parts.append(f"{name}: {profile.builtin}{', with estimates' if profile.estimates else ''}")
        guessed = guessed or bool(profile.estimates)
    # `calibrate` is proposed only for two devices or more: with one there is nothing to place.
    several = guessed and len(names) > 1
    fix = f"ov-hsdag calibrate --device HETERO:{','.join(names)} --output machine.json" if several else ""
    return Check("profiles", NOTE if several else OK, "; ".join(parts), fix)


def _memory(core: ov.Core) -> Check:
    def text(name: str) -> str:
        free, whole = free_bytes(core, name), memory_bytes(core, name)
        if whole is None:
            return f"{name} unknown"
        return f"{name} {format_bytes(whole)}{'' if free is None else f', {format_bytes(free)} of it free now'}"

    return Check("memory", OK, "; ".join(map(text, core.available_devices)))


def _measuring() -> Check:
    try:
        require_temporary_folder()
    except RunError as error:
        return Check("measuring", PROBLEM, one_line(error), "set TMPDIR to a folder that can be written")
    cores, busy = usable_cores(), busy_cores()
    if busy > 0.5 * cores:
        text = f"{busy:.1f} of {cores} cores are at work: what is measured now will differ from round to round"
        return Check("measuring", NOTE, text, "measure when nothing else runs")
    return Check("measuring", OK, f"{cores} cores, {busy:.1f} of them at work")


def _policy(core: ov.Core) -> Check:
    names = in_order(available(core))
    kept = tuned.find(core, names) if len(names) > 1 else None
    try:
        folder = bundle.find(None) if kept is None else kept
        bundle.check_folder(folder)
    except (UserError, RunError) as error:
        return Check("policy", NOTE, one_line(error), "search places without it; reinstall ov-hsdag for the policy")
    if kept is not None:
        text = f"{kept}, fine-tuned on HETERO:{','.join(names)}; place --policy base leaves it aside"
        return Check("policy", OK, text)
    return Check("policy", OK, f"{folder.name} ships with the package")


def _extension() -> Check:
    try:
        path = extension_path()
    except UserError as error:
        text, _, fix = one_line(error).partition(": run: ")
        return Check("library for C++ and benchmark_app", NOTE, text, fix or "ov-hsdag extension --build")
    return Check("library for C++ and benchmark_app", OK, str(path))


COMMAND = Command(doctor, position=110, example="ov-hsdag doctor")
