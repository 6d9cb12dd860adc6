"""The names of the detector's classes, and what a caller means by a text."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sm.errors import WrongPayload

#: Between two names of one text: "a cat. a remote control." is how detectors that read are asked.
BETWEEN = re.compile(r"[,.;\n]|\band\b")
ARTICLE = re.compile(r"^(an?|the)\s+")
#: How alike a near match is, and how many are named.
ALIKE, NEAR = 0.6, 5


class Classes:
    """``labels`` in the order of their ids."""

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels = tuple(labels)
        self._ids = {label: index for index, label in enumerate(labels)}

    def ids(self, asked: str | Sequence[str]) -> NDArray[np.int32]:
        """The ids that are meant, all of them if nothing is named; WrongPayload names near matches."""
        texts = BETWEEN.split(asked) if isinstance(asked, str) else asked
        names = [ARTICLE.sub("", " ".join(text.lower().split())) for text in texts]
        found = {self._id(name) for name in names if name}
        return np.array(sorted(found) or range(len(self.labels)), np.int32)

    def _id(self, name: str) -> int:
        if name in self._ids:
            return self._ids[name]
        near = difflib.get_close_matches(name, self.labels, NEAR, ALIKE)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(self.labels)}"
        raise WrongPayload(
            f"parameters.classes: no class is called {name[:50]!r}; {hint}",
            field="parameters.classes",
            near=near,
        )
