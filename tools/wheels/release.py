"""All that a release needs, up to what publishes it: `make release`.

    python tools/wheels/release.py [PYTHON …] [--checked]

PYTHON: as of tools/wheels/build.py; without one, all that wheels are made for have to be here. --checked: CI has passed
on this commit, and nothing is tested again. Nothing is tagged, pushed or uploaded: the last lines are the commands for
it. What is not ready ends in one line and status 2, before anything is built; a step that fails in status 1.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import runpy
import subprocess
import sys
import zipfile
from pathlib import Path

from build import PYTHONS, ROOT, WORK, runs


def end(status: int, line: str) -> None:
    print(f"not released: {line}", file=sys.stderr)
    sys.exit(status)


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        end(2, f"git {arguments[0]}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
    return done.stdout.strip()


def step(name: str, *command: object) -> None:
    print(f"== {name}", flush=True)
    status = subprocess.run([str(part) for part in command], cwd=ROOT, check=False).returncode
    if status != 0:
        end(1, f"{name} failed with exit status {status}")


def check_ready(pythons: list[str]) -> str:
    """Returns the version that is to be released."""
    if changed := git("status", "--porcelain").splitlines():
        end(2, f"{len(changed)} files are changed or not in git, such as {changed[0].split()[-1]}")
    version: str = runpy.run_path(str(ROOT / "ov_hsdag/_version.py"))["__version__"]
    if git("tag", "--list", f"v{version}"):
        end(2, f"v{version} is tagged already: ov_hsdag/_version.py needs a new version")
    sections = {}
    for part in re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        heading, _, entries = part.partition("\n")
        sections[re.sub(r" - \d{4}-\d\d-\d\d$", " - DATE", heading)] = entries.strip()
    if not sections.get(dated := f"{version} - DATE"):
        end(2, f'CHANGELOG.md has no section "## {version} - YYYY-MM-DD"{" with entries" * (dated in sections)}')
    if sections.get("Unreleased"):
        end(2, f'CHANGELOG.md: what is under "Unreleased" belongs to {version} or to no release yet')
    if missing := [name for name in pythons if not runs(name)]:
        end(2, f"{', '.join(missing)} cannot be run: name interpreters, make release PYTHONS=…")
    return version


def check_built(folder: Path, version: str, wheels: int) -> None:
    """The files of this version, no others, and in each wheel its bill of materials."""
    found = sorted(path.name for path in folder.iterdir())
    made = [name for name in found if name.startswith(f"ov_hsdag-{version}-") and name.endswith(".whl")]
    if len(made) != wheels or found != sorted([*made, f"ov_hsdag-{version}.tar.gz"]):
        end(1, f"{folder.name} does not have {wheels} wheels and the source distribution of {version}, but {found}")
    for name in made:
        with zipfile.ZipFile(folder / name) as wheel:
            inside = f"ov_hsdag-{version}.dist-info/sboms/ov-hsdag.cdx.json"
            bill = json.loads(wheel.read(inside)) if inside in wheel.namelist() else {}
        if bill.get("metadata", {}).get("component", {}).get("version") != version:
            end(1, f"{name} has no bill of materials of {version}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", nargs="*", default=PYTHONS, help="an interpreter")
    parser.add_argument("--checked", action="store_true")
    arguments = parser.parse_args()
    version = check_ready(arguments.python)
    if not arguments.checked:
        step("make test-all docs", "make", "test-all", "docs")
    step("make wheels", sys.executable, ROOT / "tools/wheels/build.py", *arguments.python)
    tools, dist = WORK / "tools/bin/python", ROOT / "dist"
    check_built(dist, version, len(arguments.python))
    step("twine check", tools, "-m", "twine", "check", "--strict", *sorted(dist.iterdir()))
    step("make try-wheels", tools, ROOT / "tools/wheels/try_wheel.py", "--index", dist, *arguments.python)
    for path in sorted(dist.iterdir()):
        print(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}")
    print(f"{version} can be released. Its tag, which makes CI build and publish it:")
    tag = f"git tag --annotate v{version} --message 'ov-hsdag {version}' {git('rev-parse', 'HEAD')}"
    print(f"    {tag} && git push origin v{version}")


if __name__ == "__main__":
    main()
