"""Write bills of materials in CycloneDX 1.6: of this environment, and of an image with its Debian packages.

``make sbom`` runs it. cyclonedx-python-lib, which pip-audit brings, writes the documents.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

#: Run by the environment's own Python: its packages, one on a line.
PYTHON_PACKAGES = r"""
import importlib.metadata
for package in importlib.metadata.distributions():
    fields = package.metadata
    licence = fields["License-Expression"] or fields["License"] or ""
    name = fields["Name"].lower().replace("_", "-")
    print("pypi", name, package.version, licence.partition("\n")[0], sep="\t")
"""
DEBIAN_PACKAGES = r"dpkg-query -W -f 'deb\t${Package}\t${Version}\t\n'"


def list_packages(command: list[str]) -> list[Component]:
    """Return a component for each line ``type, name, version, licence`` that a command prints."""
    completed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    components = []
    for line in completed.stdout.splitlines():
        kind, name, version, licence = line.split("\t")
        url = PackageURL(kind, "debian" if kind == "deb" else None, name, version)
        component = Component(
            type=ComponentType.LIBRARY, name=name, version=version, purl=url, bom_ref=str(url)
        )
        if licence:
            component.licenses.add(LicenseFactory().make_from_string(licence))
        components.append(component)
    return components


def write(path: Path, subject: Component, components: list[Component]) -> None:
    bom = Bom(components=components)
    bom.metadata.component = subject
    bom.register_dependency(subject, components)
    JsonV1Dot6(bom).output_to_file(str(path), allow_overwrite=True, indent=1)
    print(f"{path}: {len(bom.components)} packages")


def main(folder: Path, engine: str, image: str) -> None:
    """Write ``environment.json``, and ``image.json`` if there is an image."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = Component(type=ComponentType.APPLICATION, name="trireme-serving", bom_ref="environment")
    write(folder / "environment.json", environment, list_packages([sys.executable, "-c", PYTHON_PACKAGES]))
    if image:
        run = [engine, "run", "--rm", "--network", "none", "--entrypoint"]
        components = list_packages([*run, "python3", image, "-c", PYTHON_PACKAGES])
        components += list_packages([*run, "sh", image, "-c", DEBIAN_PACKAGES])
        subject = Component(type=ComponentType.CONTAINER, name=image, bom_ref="image")
        write(folder / "image.json", subject, components)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
