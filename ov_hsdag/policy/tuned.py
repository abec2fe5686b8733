"""Policies that were fine-tuned on this machine's devices, kept in the user's cache for later placings.

The environment variable `OV_HSDAG_POLICIES` names another folder; with the value 0 no policy is kept or used.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ov_hsdag.costs.stored import identity
from ov_hsdag.devices.discovery import absent
from ov_hsdag.policy.bundle import WEIGHTS_FILE
from ov_hsdag.utils.lazy import ov

VARIABLE = "OV_HSDAG_POLICIES"  # environment variable with the folder of kept policies

# Hexadecimal digits of the name of a device list's folder, and name of the policy's folder in it, which placements
# record as the policy.
_DIGITS, _NAME = 32, "fine-tuned"


def keep(policy: Path, core: ov.Core, devices: Sequence[str]) -> None:
    """Keeps a copy of a policy's folder for placings on these devices, and replaces an earlier one.

    Args:
        policy: the policy's folder.
        core: the Core.
        devices: names of the devices. Nothing is kept if one is not on this machine.
    """
    cache = _cache()
    if cache is None or absent(core, devices):
        return
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / _folder_name(core, devices)
    with tempfile.TemporaryDirectory(dir=cache) as temporary:
        new = Path(temporary) / "new"
        (new / _NAME).mkdir(parents=True)
        for name in ("policy.json", WEIGHTS_FILE):
            shutil.copyfile(policy / name, new / _NAME / name)
        if folder.exists():
            folder.rename(Path(temporary) / "old")
        new.rename(folder)


def find(core: ov.Core, devices: Sequence[str]) -> Path | None:
    """The policy that was kept for these devices on this machine; None if there is none."""
    cache = _cache()
    if cache is None or not cache.is_dir() or absent(core, devices):
        return None
    folder = cache / _folder_name(core, devices) / _NAME
    return folder if folder.is_dir() else None


def _cache() -> Path | None:
    """The folder of kept policies, which need not exist; None if no policy is kept, or there is no home directory."""
    named = os.environ.get(VARIABLE)
    if named:
        return None if named == "0" else Path(named)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ov_hsdag" / "policies"
    except RuntimeError:  # no home directory
        return None


def _folder_name(core: ov.Core, devices: Sequence[str]) -> str:
    """Name of the folder for a device list, a hash of names and `identity` without the release of OpenVINO."""
    identities = [{**identity(core, name), "openvino": None} for name in devices]
    return hashlib.sha256(json.dumps([list(devices), identities]).encode()).hexdigest()[:_DIGITS]
