"""What a wheel contains of others, as a CycloneDX file in it (PEP 770): .dist-info/sboms/ov-hsdag.cdx.json.

That is what was compiled or bundled into the wheel. What pip installs beside it stands in its METADATA.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

from cyclonedx.builder.this import this_component
from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

ROOT = Path(__file__).resolve().parents[2]


def component(kind: str, name: str, version: str, license_id: str, group: str | None = None) -> Component:
    url = PackageURL(kind, group, name, version)
    licenses, library = [LicenseFactory().make_from_string(license_id)], ComponentType.LIBRARY
    return Component(
        type=library, name=name, group=group, version=version, licenses=licenses, purl=url, bom_ref=str(url)
    )


def contents() -> list[Component]:
    """pybind11's headers, the parts of libstdc++ that are linked statically, the JavaScript of the report's page."""
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    found = [component("pypi", "pybind11", re.findall(r"^pybind11==(.+)$", pins, re.MULTILINE)[0], "BSD-3-Clause")]
    if sys.platform == "linux":
        version = subprocess.run(["g++", "-dumpfullversion"], capture_output=True, text=True, check=True).stdout.strip()
        found.append(component("generic", "libstdc++", version, "GPL-3.0-or-later WITH GCC-exception-3.1"))
    # The list that the build of the page writes of what it bundled.
    licenses = (ROOT / "ov_hsdag" / "report" / "LICENSES.txt").read_text(encoding="utf-8")
    for group, name, version, license_id in re.findall(
        r"^(?:(@[\w-]+)/)?([a-z][\w-]*) (\d+\.\d+\.\d+) \(([\w.-]+)\)$", licenses, re.MULTILINE
    ):
        found.append(component("npm", name, version, license_id, group or None))
    return found


def bill_of_materials(wheel: Path) -> str:
    """The same for the same wheel, wherever and whenever it is made."""
    name, version = wheel.name.split("-")[:2]
    bom = Bom(components=contents(), serial_number=uuid.uuid5(uuid.NAMESPACE_URL, wheel.name))
    bom.metadata.component = component("pypi", name.replace("_", "-"), version, "Apache-2.0")
    bom.metadata.tools.components.add(this_component())
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH", "315532800"))
    bom.metadata.timestamp = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    bom.register_dependency(bom.metadata.component, bom.components)
    text = JsonV1Dot6(bom).output_as_string(indent=2)
    if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        sys.exit(f"the bill of materials is not valid: {error}")
    return json.dumps(json.loads(text), indent=2, sort_keys=True) + "\n"


def add_to(wheel: Path, folder: Path) -> Path:
    """Writes the wheel with its bill of materials into the folder."""
    with tempfile.TemporaryDirectory() as temporary:
        subprocess.run([sys.executable, "-m", "wheel", "unpack", "--dest", temporary, str(wheel)], check=True)
        unpacked = next(Path(temporary).iterdir())
        sboms = next(unpacked.glob("*.dist-info")) / "sboms"
        sboms.mkdir(exist_ok=True)
        (sboms / "ov-hsdag.cdx.json").write_text(bill_of_materials(wheel), encoding="utf-8")
        for path in (sboms, sboms / "ov-hsdag.cdx.json"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        subprocess.run([sys.executable, "-m", "wheel", "pack", "--dest-dir", str(folder), str(unpacked)], check=True)
    return folder / wheel.name
