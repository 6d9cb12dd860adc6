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
        log: Callable[[str, str], None],
    ) -> None:
        """``files``: certificate and key. ``folder``: nginx's copies. ``reload`` makes nginx read them."""
        self._files, self._folder = files, folder
        self._clock, self._reload, self._log = clock, reload, log
        self._used = certificates.read(folder / certificates.CERTIFICATE, folder / certificates.KEY)
        self._last_checked = self._used
        self._rejected: KeyPair | None = None
        self._last_warning = ""
        self._next_poll = 0.0

    def poll(self) -> None:
        """Check if it is time; to be called often. An invalid pair is logged once, and the old one stays."""
        now = self._clock()
        if now < self._next_poll:
            return
        self._next_poll = now + POLL_INTERVAL_S
        try:
            self._check()
        except CertificateError as error:
            self._warn(str(error))
        except OSError as error:
            self._warn(f"the copies cannot be written: {error.strerror}")

    def _check(self) -> None:
        pair = certificates.read(*self._files)
        # The two files are not replaced in one step, so a change must be the same in two checks.
        changed, self._last_checked = pair != self._last_checked, pair
        if pair == self._used:
            self._rejected, self._last_warning = None, ""
        elif not changed and pair != self._rejected:
            self._use(pair)

    def _use(self, pair: KeyPair) -> None:
        try:
            warning = certificates.install(pair, self._folder, self._files)
        except CertificateError:
            self._rejected = pair
            raise
        self._used, self._rejected, self._last_warning = pair, None, ""
        self._reload()
        self._log("info", "the certificate was replaced")
        if warning:
            self._log("warning", warning)

    def _warn(self, sentence: str) -> None:
        """Log why the new pair is not used, unless this is the last warning again."""
        if sentence != self._last_warning:
            self._last_warning = sentence
            self._log("warning", f"the certificate stays as it was: {sentence}")
