"""Commands in processes of their own, and what they print."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path


def ended(
    *command: object,
    status: int | None = 0,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 600,
) -> subprocess.CompletedProcess[str]:
    """What a command printed that ends with this status; None: with any. env: the variables, by default ours."""
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=timeout)
    assert status in (None, done.returncode), f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done
