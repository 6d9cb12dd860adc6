"""Find the detector's classes that a caller names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sm.errors import WrongPayload

#: Separates the names of a text, such as "a cat. a remote control.", the form that Grounding DINO takes.
SEPARATOR = re.compile(r"[,.;\n]|\band\b")
ARTICLE = re.compile(r"^(an?|the)\s+")
#: The least similarity of a near match (difflib's ratio), and how many of them an error names.
MIN_SIMILARITY, MAX_NEAR = 0.6, 5


class Classes:
    """The detector's classes; ``labels`` are in the order of their ids."""

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels = tuple(labels)
        self._ids = {label: index for index, label in enumerate(labels)}

    def find_ids(self, names: str | Sequence[str]) -> NDArray[np.int32]:
        """Return the sorted ids of the named classes; all ids if no name is given.

        Raises:
            WrongPayload: A name is unknown; the error has near matches.
        """
        texts = SEPARATOR.split(names) if isinstance(names, str) else names
        plain_names = [ARTICLE.sub("", " ".join(text.lower().split())) for text in texts]
        ids = {self._find_id(name) for name in plain_names if name}
        return np.array(sorted(ids) or range(len(self.labels)), np.int32)

    def _find_id(self, name: str) -> int:
        if name in self._ids:
            return self._ids[name]
        near = difflib.get_close_matches(name, self.labels, MAX_NEAR, MIN_SIMILARITY)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(self.labels)}"
        raise WrongPayload(
            f"parameters.classes: no class is called {name[:50]!r}; {hint}",
            field="parameters.classes",
            near=near,
        )
