"""Experience: measured placements of models on this machine, kept for the models that follow.

A file for each model, devices and objective, in the user's cache: types of operations, the simulator's times and the
measured ratios; no names, no weights. `ov_hsdag.calibration.common_factor` makes a prior of them.

`OV_HSDAG_EXPERIENCE` names another folder; set to 0 nothing is kept or used.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.calibration.correction import KINDS, PARTS, Corrector, Floats, Terms
from ov_hsdag.costs.stored import graph_hash, identity
from ov_hsdag.storage.files import write_text
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.reading import SETTINGS, read_json

if TYPE_CHECKING:
    import openvino as ov

    from ov_hsdag.costs.profile import Profile

VARIABLE = "OV_HSDAG_EXPERIENCE"

FORMAT_VERSION = 1

# Measured placements of a model that are kept, the latest; and files that are kept and read, the latest.
_PLACEMENTS, _FILES = 64, 100

# That all files together may take; a usual one takes 50 kB.
_BYTES = 32 * 2**20

# Of a file's name: nothing else in the folder is ours to remove.
_DIGEST = 32

# Of figures in files.
_DIGITS = 5

_LONGEST_US = 1e15  # as in profiles

# Of a profile: what is no cost.
_WORDS = ("name", "description", "matches", "sources", "memory_bytes", "unsupported", "builtin", "kv_precision")


@dataclass(frozen=True, eq=False)
class Experience:
    """Measured placements of one model on some devices.

    Attributes:
        graph: `ov_hsdag.costs.stored.graph_hash` of the model.
        devices: digest of each device and its profile, see `device_keys`.
        objective: "latency" or "throughput".
        kinds: type of operations of each kind, see `Corrector.kinds`.
        reference: terms of the placement that the others were measured against, one row.
        terms: of the measured placements.
        ratios: how many times better than the reference each of them is, float64 [placements].
        uncertain: standard error of the logarithm of each ratio, float64 [placements].
    """

    graph: str
    devices: tuple[str, ...]
    objective: str
    kinds: tuple[str, ...]
    reference: Terms
    terms: Terms
    ratios: NDArray[np.float64]
    uncertain: NDArray[np.float64]

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "version": FORMAT_VERSION,
            "graph": self.graph,
            "devices": list(self.devices),
            "objective": self.objective,
            "kinds": list(self.kinds),
            "reference": _terms_to_dict(self.reference),
            "terms": _terms_to_dict(self.terms),
            "ratios": _rounded(self.ratios),
            "uncertain": _rounded(self.uncertain),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Experience:
        """Inverse of `to_dict`.

        Raises:
            ValueError: another version, or arrays that do not fit together.
            KeyError: something is missing.
            TypeError: something has another type.
        OverflowError: a number is too large.
        """
        if values["version"] != FORMAT_VERSION:
            raise ValueError(f"version {values['version']}")
        found = cls(
            str(values["graph"]),
            tuple(map(str, values["devices"])),
            str(values["objective"]),
            tuple(map(str, values["kinds"])),
            _terms_of(values["reference"]),
            _terms_of(values["terms"]),
            np.array(values["ratios"], np.float64),
            np.array(values["uncertain"], np.float64),
        )
        count, devices = len(found.ratios), len(found.devices)
        for terms, rows in ((found.reference, 1), (found.terms, count)):
            shapes = (terms.work.shape, terms.transfer.shape, terms.submodel.shape, terms.submodels.shape)
            if shapes != ((rows, devices, KINDS, PARTS), (rows, devices), (rows, devices), (rows,)):
                raise ValueError("arrays that do not fit together")
            if not all(((array >= 0) & (array <= _LONGEST_US)).all() for array in _arrays(terms)):
                raise ValueError("times that are none")
        sound = np.isfinite(found.ratios).all() and (found.ratios > 0).all()
        if not sound or found.uncertain.shape != (count,) or not (found.uncertain >= 0).all():
            raise ValueError("ratios that are none")
        if len(found.kinds) != KINDS or found.objective not in ("latency", "throughput"):
            raise ValueError("another objective or other kinds")
        return found

    def on(self, devices: Sequence[str]) -> Experience | None:
        """The same with the devices in this order; None where these are others."""
        if sorted(devices) != sorted(self.devices):
            return None
        own, order = list(self.devices), []
        for device in devices:
            place = own.index(device)
            own[place] = ""
            order.append(place)
        reference, terms = self.reference.of_devices(order), self.terms.of_devices(order)
        return Experience(
            self.graph, tuple(devices), self.objective, self.kinds, reference, terms, self.ratios, self.uncertain
        )


def device_keys(core: ov.Core, profile: Profile, names: Sequence[str]) -> tuple[str, ...]:
    """Digests of what has to be the same of each device for an experience to count: its identity and its profile."""
    found = []
    for name in names:
        device = profile.device(name)
        figures = {key: value for key, value in vars(device).items() if key not in _WORDS}
        links = [
            [link.us, link.gbps, name == link.source] for link in profile.links if name in (link.source, link.target)
        ]
        text = json.dumps([identity(core, name), figures, links], sort_keys=True, default=_plain)
        found.append(hashlib.sha256(text.encode()).hexdigest())
    return tuple(found)


def of_measurements(
    corrector: Corrector, keys: Sequence[str], placements: NDArray[np.uint8], ratios: Floats, uncertain: Floats
) -> Experience:
    """Returns the experience that measured placements of a model are.

    Args:
        corrector: of the model.
        keys: of its devices, see `device_keys`.
        placements: uint8 [placements, groups].
        ratios: how many times better than the corrector's reference each of them is, float64 [placements].
        uncertain: standard error of the logarithm of each ratio, float64 [placements].
    """
    return Experience(
        graph_hash(corrector.problem.graph),
        tuple(keys),
        corrector.problem.objective,
        corrector.kinds,
        corrector.reference,
        corrector.terms(placements),
        np.asarray(ratios, np.float64),
        np.asarray(uncertain, np.float64),
    )


def folder() -> Path | None:
    """Where experience is kept; None where none is."""
    given = os.environ.get(VARIABLE)
    if given is not None:
        return None if given in ("", "0") else Path(given)
    with contextlib.suppress(RuntimeError):  # no home
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ov_hsdag" / "experience"
    return None


def keep(experience: Experience) -> None:
    """Adds to what is kept of the same model, devices, objective and reference; nothing happens where it cannot.

    What is kept is a help for later runs and nobody asked for it, so a full disk or a folder that cannot be written to
    must not spoil the run that was asked for.
    """
    into = folder()
    if into is None or not len(experience.ratios):
        return
    path = into / f"{_name(experience)}.json"
    known = _read(path)
    if known is not None and len(known.ratios):
        experience = replace(
            experience,
            terms=Terms.join([known.terms, experience.terms])[-_PLACEMENTS:],
            ratios=np.concatenate([known.ratios, experience.ratios])[-_PLACEMENTS:],
            uncertain=np.concatenate([known.uncertain, experience.uncertain])[-_PLACEMENTS:],
        )
    with contextlib.suppress(UserError):
        write_text(path, json.dumps(experience.to_dict()) + "\n")
        _prune(into)


def kept() -> list[Experience]:
    """Returns what is kept, oldest first. Files that cannot be read are left out."""
    where = folder()
    if where is None:
        return []
    return [one for path in [*_sizes(where)][-_FILES:] if (one := _read(path)) is not None]


def _sizes(where: Path) -> dict[Path, int]:
    """The files in a folder with their sizes, oldest first."""
    found: dict[Path, os.stat_result] = {}
    with contextlib.suppress(OSError):
        for path in where.glob("*.json"):
            with contextlib.suppress(OSError):
                found[path] = path.stat()
    order = sorted(found, key=lambda path: (found[path].st_mtime, path.name))
    return {path: found[path].st_size for path in order}


def _prune(where: Path) -> None:
    """Removes the oldest files where there are too many, or all together are too large; the latest stays."""
    own = {path: size for path, size in _sizes(where).items() if re.fullmatch(f"[0-9a-f]{{{_DIGEST}}}", path.stem)}
    left, total = len(own), sum(own.values())
    for path, size in own.items():
        if left == 1 or (left <= _FILES and total <= _BYTES):
            break
        with contextlib.suppress(OSError):
            path.unlink()
        left, total = left - 1, total - size


def _name(experience: Experience) -> str:
    reference = _terms_to_dict(experience.reference)
    text = json.dumps([experience.graph, experience.devices, experience.objective, reference])
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST]


def _read(path: Path) -> Experience | None:
    try:
        return Experience.from_dict(read_json(path, SETTINGS))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _arrays(terms: Terms) -> tuple[NDArray[Any], ...]:
    return terms.work, terms.transfer, terms.submodel, terms.submodels


def _terms_to_dict(terms: Terms) -> dict[str, Any]:
    return {
        "work": [_rounded(row) for row in terms.work.reshape(len(terms.work), -1)],
        "transfer": [_rounded(row) for row in terms.transfer],
        "submodel": [_rounded(row) for row in terms.submodel],
        "submodels": terms.submodels.tolist(),
    }


def _terms_of(values: dict[str, Any]) -> Terms:
    submodels = np.array(values["submodels"], np.int32)
    rows = len(submodels)
    transfer, submodel = (np.array(values[key], np.float64).reshape(rows, -1) for key in ("transfer", "submodel"))
    work = np.array(values["work"], np.float64).reshape(rows, transfer.shape[1] if rows else 1, KINDS, PARTS)
    return Terms(work, transfer, submodel, submodels)


def _rounded(values: Floats) -> list[float]:
    return [float(f"{value:.{_DIGITS}g}") for value in values.tolist()]


def _plain(value: Any) -> Any:
    return dict(value) if hasattr(value, "items") else list(value)
