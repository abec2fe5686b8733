"""Files outside of packages: scripts as modules, and code that documents show."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

DOCS = Path(__file__).resolve().parents[1] / "docs"


@contextmanager
def loaded(script: Path) -> Iterator[ModuleType]:
    """The script as a module under its own name, as long as the block runs."""
    spec = importlib.util.spec_from_file_location(script.stem, script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[script.stem] = module
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules[script.stem]


def dockerfile_of_an_application() -> str:
    """The Dockerfile that docs/guides/containers.md shows."""
    text = (DOCS / "guides/containers.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```dockerfile\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return str(block)
