"""The names of the classes, and the rows that are printed of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from sm.errors import StartError

#: A line that says its own index, as the reference's file has them: "250:malamute, malemute".
NUMBERED = re.compile(r"\d+:")


@dataclass(frozen=True)
class Labels:
    """One name for each class; none where the model brings no file."""

    names: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: Path | None, classes: int) -> Labels:
        """:class:`StartError` if there are not as many labels as classes.

        The reference's numbered file has more than its model has classes: those over are never printed.
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
        """``score:index:index:label``; without labels ``score:index``, as Triton prints it then."""
        has_name = index < len(self.names)
        return f"{score:f}:{index}:{self.names[index]}" if has_name else f"{score:f}:{index}"
