"""The names of ImageNet's 1,000 classes, in the order of the model's outputs."""

from __future__ import annotations

import re
import tarfile
from pathlib import Path

#: A line ``285: 'Egyptian cat',`` of a JavaScript object; long names are joined with ``' + '`` before.
ENTRY = re.compile(r"""^\s*(\d+): (['"])((?:\\.|(?!\2).)*)\2,?$""", re.MULTILINE)
JOINED = re.compile(r"""(['"])\s*\+\s*\1""")
FILE = "package/dist/imagenet_classes.js"


def names(package: Path) -> list[str]:
    """Each class with all its names; ValueError if they are not 1,000."""
    with tarfile.open(package) as archive:
        opened = archive.extractfile(FILE)
        assert opened is not None, FILE
        script = JOINED.sub("", opened.read().decode())
    found = {int(index): re.sub(r"\\(.)", r"\1", text) for index, _, text in ENTRY.findall(script)}
    if sorted(found) != list(range(1000)):
        raise ValueError(f"{len(found)} classes; there should be 1,000")
    return [found[index] for index in range(1000)]
