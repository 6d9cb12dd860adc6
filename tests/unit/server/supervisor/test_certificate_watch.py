"""When a certificate is replaced while the box runs: real files, and a clock that the test moves."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm.server.access import certificates
from sm.server.supervisor.certificate_watch import CertificateWatch
from tests.support import certificates as certificate_files


class Watched:
    """A pair of files, the copies of it, and what the watch has done."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now, self.reloads = folder, 100.0, 0
        self.said: list[str] = []
        self.files = certificate_files.write(folder)
        certificates.install(certificates.read(*self.files), folder / "tls", self.files)
        self.watch = CertificateWatch(
            self.files, folder / "tls", lambda: self.now, self.reload, lambda _, text: self.said.append(text)
        )

    def reload(self) -> None:
        self.reloads += 1

    def look(self) -> None:
        self.now += 1.0
        self.watch.poll()

    def served(self) -> bytes:
        return (self.folder / "tls" / certificates.CERTIFICATE).read_bytes()


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_a_pair_that_stays_is_left_alone(watched: Watched) -> None:
    for _ in range(5):
        watched.look()
    assert (watched.reloads, watched.said) == (0, [])


def test_a_new_pair_is_served_at_the_second_look_and_once(watched: Watched) -> None:
    certificate_files.write(watched.folder)
    watched.look()
    assert watched.reloads == 0
    for _ in range(4):
        watched.look()
    assert (watched.reloads, watched.said) == (1, ["the certificate was replaced"])
    assert watched.served() == watched.files[0].read_bytes()


def test_files_that_are_replaced_one_after_the_other_are_no_fault(watched: Watched) -> None:
    (watched.folder / "new").mkdir()
    certificate, key = certificate_files.write(watched.folder / "new")
    certificate.replace(watched.files[0])
    watched.look()
    key.replace(watched.files[1])
    for _ in range(3):
        watched.look()
    assert (watched.reloads, watched.said) == (1, ["the certificate was replaced"])


def test_a_fault_is_reported_once_and_again_after_the_next_good_pair(watched: Watched) -> None:
    good = watched.files[0].read_bytes()
    for _ in range(2):
        watched.files[0].write_text("garbage")
        for _ in range(4):
            watched.look()
        assert watched.served() == good
        watched.files[0].write_bytes(good)
        for _ in range(3):
            watched.look()
    assert watched.reloads == 0
    assert len(watched.said) == 2
    assert all(text.startswith("the certificate stays as it was") for text in watched.said)


def test_a_pair_that_was_rejected_is_not_tried_every_second(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Path] = []
    check = certificates.check

    def count(certificate: Path, key: Path, origin: tuple[Path, Path]) -> str:
        tried.append(certificate)
        return check(certificate, key, origin)

    monkeypatch.setattr(certificates, "check", count)
    watched.files[0].write_text("garbage")
    for _ in range(10):
        watched.look()
    assert len(tried) == 1


def test_between_two_looks_nothing_is_read(watched: Watched) -> None:
    watched.look()
    watched.files[0].unlink()
    watched.now += 0.5
    watched.watch.poll()
    assert watched.said == []
