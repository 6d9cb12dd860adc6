"""The names of the classes, and the rows of an answer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from sm.errors import StartError

#: A line that starts with its index, as in the reference's file: "250:malamute, malemute".
NUMBERED = re.compile(r"\d+:")


@dataclass(frozen=True)
class Labels:
    """One ``index:name`` for each class; none if the model has no label file."""

    names: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: Path | None, classes: int) -> Labels:
        """Read a file with one label per line.

        The reference's numbered file has more labels than its model has classes; the rest is never used.

        Args:
            path: The label file; None: the model has none.
            classes: How many classes the model scores; -1: unknown.

        Raises:
            StartError: The file cannot be read, or has another number of labels than the model has classes.
        """
        if path is None:
            return cls()
        try:
            names = tuple(path.read_text(encoding="utf-8").splitlines())
        except OSError as error:
            raise StartError(f"{path} cannot be read: {error.strerror}.") from None
        except UnicodeDecodeError:
            raise StartError(f"{path} is not UTF-8 text.") from None
        numbered = bool(names) and all(map(NUMBERED.match, names))
        if 0 <= classes != len(names) and not (numbered and len(names) > classes):
            raise StartError(f"{path} has {len(names)} labels for {classes} classes.")
        return cls(names if numbered else tuple(f"{index}:{name}" for index, name in enumerate(names)))

    def row(self, score: float, index: int) -> str:
        """Return ``score:index:index:label``; without labels ``score:index``, as Triton prints it then."""
        has_name = index < len(self.names)
        return f"{score:f}:{index}:{self.names[index]}" if has_name else f"{score:f}:{index}"
