"""A certificate that is replaced while the box runs is reloaded. Real files, and a clock that the test moves."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from sm.server.access import certificates
from tests.support import certificates as certificate_files


class Watched:
    """A certificate and key, their served copies, and what the watch has done."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now, self.reload, self.log = folder, 100.0, Mock(), Mock()
        self.files, served = certificate_files.write(folder), folder / "tls"
        certificates.install(certificates.read(*self.files), served, self.files)
        self.watch = certificates.watch(self.files, served, self.reload, self.log, lambda: self.now)

    def done(self) -> tuple[int, list[str]]:
        """Return how many times the certificate was reloaded, and the levels of the log's lines."""
        return self.reload.call_count, [call.args[0] for call in self.log.call_args_list]

    def poll(self, times: int = 1) -> None:
        for _ in range(times):
            self.now += 1.0
            self.watch.look()

    def served_certificate(self) -> bytes:
        return (self.folder / "tls" / certificates.CERTIFICATE).read_bytes()


@pytest.fixture
def setup(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_files_may_be_replaced_one_after_the_other(setup: Watched) -> None:
    (setup.folder / "new").mkdir()
    certificate, key = certificate_files.write(setup.folder / "new")
    certificate.replace(setup.files[0])
    setup.poll()
    key.replace(setup.files[1])
    setup.poll(3)
    assert setup.done() == (1, ["info"])


def test_invalid_files_are_reported_once_until_the_next_valid_ones(setup: Watched) -> None:
    valid = setup.files[0].read_bytes()
    for spoil in (lambda file: file.write_text("garbage"), Path.unlink):
        spoil(setup.files[0])
        setup.poll(4)
        assert setup.served_certificate() == valid
        setup.files[0].write_bytes(valid)
        setup.poll(3)
    assert setup.done() == (0, ["warning", "warning"])


def test_a_full_disk_delays_the_reload(setup: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    full_disk = Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    certificate_files.write(setup.folder)
    with monkeypatch.context() as patch:
        patch.setattr(certificates, "install", full_disk)
        setup.poll(4)
    assert setup.done() == (0, ["warning"])
    setup.poll()
    assert (setup.reload.call_count, setup.served_certificate()) == (1, setup.files[0].read_bytes())
