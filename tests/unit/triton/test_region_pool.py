"""Regions are shared by no two requests, never used again while Triton may write to them, and never over the budget."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
)

from sm.errors import ModelFailed, NotReady, TriremeError
from sm.metrics import SHARED_BYTES
from sm.polling import WATCH_S
from sm.triton import region_pool
from sm.triton.channel import Channel
from sm.triton.region_pool import MIN_REGION_BYTES, RETRY_PAUSE_S, Lease, Region, RegionPool, round_up
from tests.support.series import value

BUDGET = 8 * MIN_REGION_BYTES


class MappedRegions:
    """The calls of a channel to a Triton that notes what it maps; it unmaps no region that a request uses."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.in_use: set[str] = set()
        self.error: TriremeError | None = None

    def register(self, name: str, size: int) -> None:
        if self.error:
            raise self.error
        assert name not in self.sizes
        self.sizes[name] = size

    def unregister(self, name: str) -> None:
        if self.error:
            raise self.error
        if name in self.in_use:
            raise ModelFailed("a request uses it")
        self.sizes.pop(name, None)

    def registered(self) -> set[str]:
        return set(self.sizes)


@pytest.fixture
def triton() -> MappedRegions:
    return MappedRegions()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(region_pool, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


@pytest.fixture
def pool(triton: MappedRegions, clock: SimpleNamespace, tmp_path: Path) -> Iterator[RegionPool]:
    pool = RegionPool(cast(Channel, triton), BUDGET, "t-", tmp_path)
    yield pool
    pool.close()


class Requests(RuleBasedStateMachine):
    """Requests that lease regions, end or are given up, while Triton works and starts again."""

    leases: Bundle[Lease] = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.triton = MappedRegions()
        self.pool = RegionPool(cast(Channel, self.triton), BUDGET, "t-", Path(self.folder.name))
        #: The number that each living request wrote into all of its region.
        self.written: dict[Lease, int] = {}
        self.given_up: set[str] = set()

    @rule(target=leases, size=st.integers(1, BUDGET // 2))
    def request(self, size: int) -> Lease | MultipleResults[Lease]:
        lease = self.pool.lease(size)
        if lease is None:
            return multiple()
        name = lease.region.name
        assert lease.memory.size >= size
        assert self.triton.sizes[name] == lease.memory.size
        assert name not in self.given_up | {other.region.name for other in self.written}
        number = len(self.written) + 1
        lease.memory[:] = number
        self.written[lease] = number
        return lease

    @rule(lease=consumes(leases))
    def end(self, lease: Lease) -> None:
        del self.written[lease]
        del lease.memory

    @rule(lease=consumes(leases))
    def give_up(self, lease: Lease) -> None:
        del self.written[lease]
        self.given_up.add(lease.region.name)
        self.triton.in_use.add(lease.region.name)
        self.pool.retire(lease)

    @rule()
    def triton_ends_all(self) -> None:
        self.triton.in_use.clear()

    @rule(lease=leases)
    def triton_starts_again_and_refuses(self, lease: Lease) -> None:
        # A region of an earlier start is refused for that one.
        if lease.region.name in self.triton.sizes:
            self.triton.sizes.clear()
            self.triton.in_use.clear()
            self.pool.forget_registrations(lease)

    @invariant()
    def nobody_writes_into_anothers_region(self) -> None:
        assert all((lease.memory == number).all() for lease, number in self.written.items())

    @invariant()
    def the_budget_is_kept(self) -> None:
        files = [path.stat().st_size for path in Path(self.folder.name).iterdir()]
        mapped = [size for name, size in self.triton.sizes.items() if name in self.given_up]
        assert sum(files) + sum(mapped) <= value(SHARED_BYTES) <= BUDGET

    def teardown(self) -> None:
        self.triton.in_use.clear()
        self.pool.close()
        assert list(Path(self.folder.name).iterdir()) == []
        assert self.triton.sizes == {}
        assert value(SHARED_BYTES) == 0
        assert self.pool.lease(1) is None
        self.nobody_writes_into_anothers_region()
        self.folder.cleanup()


TestRequests = Requests.TestCase
TestRequests.settings = settings(max_examples=50, stateful_step_count=30)


def leased(pool: RegionPool, size: int = 1) -> Lease:
    lease = pool.lease(size)
    assert lease
    return lease


def test_the_smallest_idle_region_that_is_large_enough_is_used_again(pool: RegionPool) -> None:
    large, small, last = leased(pool, 3 * MIN_REGION_BYTES), leased(pool), leased(pool)
    names = [lease.region.name for lease in (small, last, large)]
    for lease in (large, small, last):
        del lease.memory
    # Of two equals the last used, which a processor has cached.
    again = [leased(pool), leased(pool), leased(pool, 2 * MIN_REGION_BYTES)]
    assert [lease.region.name for lease in again] == [names[1], names[0], names[2]]


def test_idle_regions_make_room_the_least_recently_used_first(
    pool: RegionPool, triton: MappedRegions
) -> None:
    leases = [leased(pool, BUDGET // 4) for _ in range(4)]
    names = [lease.region.name for lease in leases]
    for lease in leases:
        del lease.memory
    assert leased(pool, BUDGET // 2).region.name in triton.sizes
    assert triton.sizes.keys() & set(names) == set(names[2:])


def test_idle_regions_stay_if_their_end_makes_no_room(pool: RegionPool, triton: MappedRegions) -> None:
    idle, _used = leased(pool, BUDGET // 4), leased(pool, BUDGET // 2)
    del idle.memory
    assert pool.lease(BUDGET // 2 + 1) is None
    assert idle.region.name in triton.sizes
    assert leased(pool, BUDGET // 4).region is idle.region


def test_what_a_request_that_was_given_up_held_is_free_when_triton_has_ended_it(
    pool: RegionPool, triton: MappedRegions, clock: SimpleNamespace
) -> None:
    lease = leased(pool, BUDGET)
    triton.in_use.add(lease.region.name)
    pool.retire(lease)
    assert pool.lease(BUDGET) is None
    triton.in_use.clear()
    clock.now += WATCH_S
    assert leased(pool, BUDGET).region is not lease.region


def test_a_refusal_of_triton_or_of_the_machine_ends_new_regions_for_a_while(
    pool: RegionPool, triton: MappedRegions, clock: SimpleNamespace, tmp_path: Path
) -> None:
    idle = leased(pool)
    del idle.memory
    triton.error = ModelFailed("no")
    assert pool.lease(BUDGET // 2) is None
    triton.error = None
    assert pool.lease(BUDGET // 2) is None
    assert leased(pool).region is idle.region
    clock.now += RETRY_PAUSE_S
    whole = leased(pool, BUDGET - MIN_REGION_BYTES)
    assert len(list(tmp_path.iterdir())) == 2
    pool.retire(whole)


def test_the_end_waits_for_no_request_for_long(
    pool: RegionPool, triton: MappedRegions, tmp_path: Path
) -> None:
    used, other = leased(pool), leased(pool)
    triton.in_use.add(used.region.name)
    pool.close()
    assert triton.sizes.keys() == {used.region.name}
    assert list(tmp_path.iterdir()) == []
    assert not other.memory.any()


def test_a_folder_without_room_costs_no_budget(
    triton: MappedRegions, clock: SimpleNamespace, tmp_path: Path
) -> None:
    folder = tmp_path / "missing"
    pool = RegionPool(cast(Channel, triton), BUDGET, "t-", folder)
    assert pool.lease(BUDGET) is None
    folder.mkdir()
    assert pool.lease(BUDGET) is None
    clock.now += RETRY_PAUSE_S
    assert leased(pool, BUDGET)
    pool.close()


def test_a_reason_is_logged_once(pool: RegionPool, caplog: pytest.LogCaptureFixture) -> None:
    _whole = leased(pool, BUDGET)
    assert [pool.lease(1) for _ in range(3)] == [None] * 3
    assert len(caplog.records) == 1


def test_a_triton_that_does_not_answer_is_the_callers_error_and_costs_no_budget(
    pool: RegionPool, triton: MappedRegions
) -> None:
    triton.error = NotReady("restarting")
    with pytest.raises(NotReady):
        pool.lease(BUDGET)
    triton.error = None
    assert leased(pool, BUDGET)


def test_a_region_is_never_created_over_an_existing_file(tmp_path: Path) -> None:
    Region.create(tmp_path / "r", 4096)
    with pytest.raises(FileExistsError):
        Region.create(tmp_path / "r", 4096)


@pytest.mark.parametrize("size", [1, 65_536, 65_537, 1_000_000, 13_516_800, 2**30 + 1])
def test_sizes_are_rounded_up_by_at_most_an_eighth(size: int) -> None:
    assert size <= round_up(size) <= max(MIN_REGION_BYTES, size + size // 8 + MIN_REGION_BYTES)
    assert round_up(round_up(size)) == round_up(size)
