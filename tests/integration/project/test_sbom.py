"""``make sbom``: what an auditor reads names every package that the box needs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

from sm.settings import HERE


def test_the_bill_of_materials_has_every_dependency_with_version_and_address(tmp_path: Path) -> None:
    subprocess.run([sys.executable, HERE / "tools/sbom.py", tmp_path, "", ""], check=True, timeout=60)
    document = json.loads((tmp_path / "environment.json").read_text())
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    packages = {component["name"]: component for component in document["components"]}
    for requirement in requires("trireme-serving") or ():
        if "extra ==" in requirement and "extra == 'cpu'" not in requirement:
            continue
        name = re.split(r"[\[<>=;~ ]", requirement)[0].lower()
        assert packages[name]["purl"] == f"pkg:pypi/{name}@{packages[name]['version']}"
