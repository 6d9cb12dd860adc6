"""Write the metadata that pip would, so that an image without pip knows the distribution's entry points.

``python write_metadata.py VERSION`` writes it beside the package.
"""

from __future__ import annotations

import sys
from pathlib import Path

import tomllib

HERE = Path(__file__).parent


def main(version: str) -> None:
    project = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    folder = HERE / f"{project['name'].replace('-', '_')}-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    fields = {"Metadata-Version": "2.4", "Name": project["name"], "Version": version}
    fields["License-Expression"] = project["license"]
    (folder / "METADATA").write_text("".join(f"{name}: {value}\n" for name, value in fields.items()))
    lines = []
    for group, rows in project.get("entry-points", {}).items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in rows.items())]
    (folder / "entry_points.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
