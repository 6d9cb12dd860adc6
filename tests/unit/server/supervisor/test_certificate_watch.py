"""A certificate that is replaced while the box runs is reloaded. Real files, and a clock that the test moves."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sm.server.access import certificates
from sm.server.access.certificates import CertificateWatch
from tests.support import certificates as certificate_files


class WatchedCertificate:
    """A certificate and key, their served copies, and what the watch has done."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now, self.reloads = folder, 100.0, 0
        self.log_messages: list[str] = []
        self.files = certificate_files.write(folder)
        certificates.install(certificates.read(*self.files), folder / "tls", self.files)
        self.watch = CertificateWatch(
            self.files,
            folder / "tls",
            lambda: self.now,
            self.reload,
            lambda _, text: self.log_messages.append(text),
        )

    def reload(self) -> None:
        self.reloads += 1

    def poll_after_1_s(self) -> None:
        self.now += 1.0
        self.watch.poll()

    def served_certificate(self) -> bytes:
        return (self.folder / "tls" / certificates.CERTIFICATE).read_bytes()


@pytest.fixture
def setup(tmp_path: Path) -> WatchedCertificate:
    return WatchedCertificate(tmp_path)


def test_unchanged_files_are_not_reloaded(setup: WatchedCertificate) -> None:
    for _ in range(5):
        setup.poll_after_1_s()
    assert (setup.reloads, setup.log_messages) == (0, [])


def test_new_files_are_reloaded_once_at_the_second_poll(setup: WatchedCertificate) -> None:
    certificate_files.write(setup.folder)
    setup.poll_after_1_s()
    assert setup.reloads == 0
    for _ in range(4):
        setup.poll_after_1_s()
    assert (setup.reloads, setup.log_messages) == (1, ["the certificate was replaced"])
    assert setup.served_certificate() == setup.files[0].read_bytes()


def test_files_may_be_replaced_one_after_the_other(setup: WatchedCertificate) -> None:
    (setup.folder / "new").mkdir()
    certificate, key = certificate_files.write(setup.folder / "new")
    certificate.replace(setup.files[0])
    setup.poll_after_1_s()
    key.replace(setup.files[1])
    for _ in range(3):
        setup.poll_after_1_s()
    assert (setup.reloads, setup.log_messages) == (1, ["the certificate was replaced"])


def test_invalid_files_are_reported_once_and_again_after_the_next_valid_ones(
    setup: WatchedCertificate,
) -> None:
    valid = setup.files[0].read_bytes()
    for _ in range(2):
        setup.files[0].write_text("garbage")
        for _ in range(4):
            setup.poll_after_1_s()
        assert setup.served_certificate() == valid
        setup.files[0].write_bytes(valid)
        for _ in range(3):
            setup.poll_after_1_s()
    assert setup.reloads == 0
    assert len(setup.log_messages) == 2
    assert all(text.startswith("the certificate stays as it was") for text in setup.log_messages)


def test_new_files_for_which_the_disk_has_no_room_are_reloaded_when_it_has(
    setup: WatchedCertificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    certificate_files.write(setup.folder)
    with monkeypatch.context() as patch:
        patch.setattr(certificates, "install", fail)
        for _ in range(4):
            setup.poll_after_1_s()
    assert (setup.reloads, len(setup.log_messages)) == (0, 1)
    setup.poll_after_1_s()
    assert (setup.reloads, setup.served_certificate()) == (1, setup.files[0].read_bytes())
