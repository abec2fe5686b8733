"""Policies that travel with runs: their folders are on one machine."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ov_hsdag.policy.bundle import PolicyFolder


@dataclass(frozen=True, eq=False)
class Policies:
    """Folders of policies; equal to themselves alone, so that functions can cache by them.

    Attributes:
        files: of each, by their names.
    """

    files: tuple[Mapping[str, bytes], ...]

    @classmethod
    def of(cls, *folders: Path) -> Policies:
        """Those in some folders."""
        return cls(
            tuple({path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} for folder in folders)
        )

    @classmethod
    def untrained(cls, policy: str, seeds: Iterable[int]) -> Policies | None:
        """The network of a policy with random weights, from each of some seeds; None without torch."""
        try:
            import torch

            from ov_hsdag.training.export import export, load
            from ov_hsdag.training.network import HSDAGNetwork
        except ImportError:
            return None
        config = load(PolicyFolder.load(policy).path).config
        with tempfile.TemporaryDirectory() as name:
            folders = [Path(name) / str(seed) for seed in seeds]
            for folder in folders:
                torch.manual_seed(int(folder.name))
                export(HSDAGNetwork(config), folder)
            return cls.of(*folders)

    def folder(self, number: int = 0) -> Path:
        """Where this process has the files of one."""
        folder = Path(_own(self).name) / str(number)
        if not folder.exists():
            folder.mkdir()
            for name, data in self.files[number].items():
                (folder / name).write_bytes(data)
        return folder


@cache
def _own(policies: Policies) -> tempfile.TemporaryDirectory[str]:
    """A folder of this process, which ends with it."""
    return tempfile.TemporaryDirectory(prefix="ov-hsdag-policies-", ignore_cleanup_errors=True)
