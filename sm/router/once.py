"""Notes of the requests that may run only once, so that no second worker runs them.

nginx gives a request to another worker if its worker died before it answered a byte, and it cannot know the
request's client. So a worker that is about to run a client which is not repeatable writes a note, and the
next worker that gets the same request refuses it.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from sm.errors import Interrupted
from sm.invocation import Invocation


class OnceNotes:
    """The notes of a box. ``folder``: shared by its workers; the box's end removes it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def begin(self, invocation: Invocation) -> None:
        """Note that an invocation begins; :meth:`end` removes the note. Without nginx there is none.

        Raises:
            Interrupted: Another worker died while it ran this request.
        """
        if not invocation.arrival or invocation.note is not None:
            return
        name = hashlib.sha256(f"{invocation.arrival} {invocation.request_id}".encode()).hexdigest()
        note = self._folder / name
        self._folder.mkdir(exist_ok=True)
        try:
            with note.open("x") as file:
                file.write(str(os.getpid()))
        except FileExistsError:
            if not _is_alive(note):
                raise Interrupted(
                    "the worker that ran this request died, and its client may not run it twice"
                ) from None
            return  # another request of the same moment and id
        invocation.note = note

    @staticmethod
    def end(invocation: Invocation) -> None:
        """Remove the note of an invocation."""
        if invocation.note is not None:
            invocation.note.unlink(missing_ok=True)


def _is_alive(note: Path) -> bool:
    """True if the worker that wrote a note still runs."""
    try:
        os.kill(int(note.read_text() or "0") or os.getpid(), 0)
    except (ProcessLookupError, ValueError):
        return False
    except OSError:  # the note is gone: its request has ended
        return True
    return True
