"""Make of a built wheel one that can be published: the platform's tag, symbols stripped, a bill of materials.

    python tools/wheels/repair.py WHEEL FOLDER

cibuildwheel and tools/wheels/build.py both call it. OpenVINO's library is the user's and is not taken into the wheel.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from sbom import add_to


def main() -> None:
    wheel, folder = Path(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        if sys.platform == "linux":
            tag = os.environ.get("AUDITWHEEL_PLAT") or f"manylinux_2_28_{platform.machine()}"
            options = ["--plat", tag, "--only-plat", "--strip", "--exclude", "libopenvino.so.*"]
            subprocess.run(["auditwheel", "repair", *options, "--wheel-dir", temporary, str(wheel)], check=True)
        else:
            options = ["--exclude", "openvino.dll", "--analyze-existing"]
            subprocess.run(["delvewheel", "repair", *options, "--wheel-dir", temporary, str(wheel)], check=True)
        print(add_to(next(Path(temporary).glob("*.whl")), folder))


if __name__ == "__main__":
    main()
