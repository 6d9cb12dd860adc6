"""Replace the certificate while the box runs: check the new pair, then make nginx read it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sm.server.access import certificates
from sm.server.access.certificates import CertificateError, KeyPair

POLL_INTERVAL_S = 1.0


class CertificateWatch:
    """Checks the two files once a second."""

    def __init__(
        self,
        files: tuple[Path, Path],
        folder: Path,
        clock: Callable[[], float],
        reload: Callable[[], None],
        say: Callable[[str, str], None],
    ) -> None:
        """``files``: certificate and key. ``folder``: nginx's copies. ``reload`` makes nginx read them."""
        self._files, self._folder = files, folder
        self._clock, self._reload, self._say = clock, reload, say
        self._used = certificates.read(folder / certificates.CERTIFICATE, folder / certificates.KEY)
        self._last_checked = self._used
        self._rejected: KeyPair | None = None
        self._complaint = ""
        self._next = 0.0

    def poll(self) -> None:
        """Check if it is time; to be called often. An invalid pair is logged once, and the old one stays."""
        now = self._clock()
        if now < self._next:
            return
        self._next = now + POLL_INTERVAL_S
        try:
            self._look()
        except CertificateError as error:
            self._complain(str(error))
        except OSError as error:
            self._complain(f"the copies cannot be written: {error.strerror}")

    def _look(self) -> None:
        pair = certificates.read(*self._files)
        # The two files are not replaced in one step, so a change must be the same in two checks.
        changed, self._last_checked = pair != self._last_checked, pair
        if pair == self._used:
            self._rejected, self._complaint = None, ""
        elif not changed and pair != self._rejected:
            self._use(pair)

    def _use(self, pair: KeyPair) -> None:
        try:
            warning = certificates.install(pair, self._folder, self._files)
        except CertificateError:
            self._rejected = pair
            raise
        self._used, self._rejected, self._complaint = pair, None, ""
        self._reload()
        self._say("info", "the certificate was replaced")
        if warning:
            self._say("warning", warning)

    def _complain(self, sentence: str) -> None:
        if sentence != self._complaint:
            self._complaint = sentence
            self._say("warning", f"the certificate stays as it was: {sentence}")
