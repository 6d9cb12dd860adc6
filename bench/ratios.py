"""The targets: this box against the others, as ratios of medians of one run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bench.contestant import MODELS, READY
from bench.contestants import PEERS
from bench.measuring import Record
from bench.results import Results

#: Callers that the targets are about.
CALLERS = (8, 32)
MEGABYTE = 2**20


@dataclass(frozen=True)
class Ratio:
    """A target and the measured value; ``reached`` is None if a part of it was not measured."""

    what: str
    against: str
    target: str
    reached: float | None
    met: bool | None


def ratios(results: Results) -> Iterator[Ratio]:
    """Yield each ratio of which the run has at least one side."""
    for callers in CALLERS:
        yield from _instant(results, callers)
        yield from _real(results, callers)
    yield from _tail(results)
    yield from _many_callers(results)
    for model in MODELS:
        yield _rate(results, "instant", model, CALLERS[-1], "trireme", ("trireme_one",), 1.7)
    yield _memory(results)


def _instant(results: Results, callers: int) -> Iterator[Ratio]:
    for model, target in zip(MODELS, (4.0, 7.0, 6.0), strict=True):
        yield _rate(results, "instant", model, callers, "trireme", ("reference",), target)
    for model in MODELS[:2]:
        yield _rate(results, "instant", model, callers, "trireme", PEERS, 1.15)
    servers = ("litserve", "bentoml", "mlserver", "mlserver_one")
    yield _rate(results, "instant", "bert_base", callers, "trireme", servers, 1.0)
    for model in MODELS:
        yield _cost(results, model, callers)


def _real(results: Results, callers: int) -> Iterator[Ratio]:
    for model in MODELS:
        yield _rate(results, "real", model, callers, "trireme_same", ("loop",), 0.95)
    for model, target in zip(MODELS, (1.7, 1.5, 1.9), strict=True):
        yield _rate(results, "real", model, callers, "trireme", PEERS, target)
        yield _rate(results, "real", model, callers, "trireme_fp32", PEERS, 1.0)
        yield _rate(results, "real", model, callers, "trireme", ("fastapi_openvino",), 0.95)


def _rate(
    results: Results,
    regime: str,
    model: str,
    callers: int,
    contestant: str,
    others: Sequence[str],
    target: float,
) -> Ratio:
    rate = _json(results, lambda record: record.rate, contestant, regime, model, callers)
    name, best = _best(results, lambda record: record.rate, others, regime, model, callers, max)
    reached = rate / best if rate is not None and best else None
    what = f"{regime}, {model}, {callers} callers: {contestant}, answers a second"
    return Ratio(what, name, f"≥ {target:g} ×", reached, None if reached is None else reached >= target)


def _cost(results: Results, model: str, callers: int) -> Ratio:
    """Processor time for an answer without what it takes to decode the picture, against ready tensors."""
    cost = _json(results, lambda record: record.cost, "trireme", "instant", model, callers)
    floor = _json(results, lambda record: record.cost, "triton", "instant", model, callers)
    reached = None if cost is None or not floor else (cost - results.decoding.get(model, 0.0)) / floor
    what = f"instant, {model}, {callers} callers: trireme, processor time an answer less decoding"
    return Ratio(what, "triton", "≤ 1.5 ×", reached, None if reached is None else reached <= 1.5)


def _tail(results: Results) -> Iterator[Ratio]:
    for model in MODELS:
        p99 = _json(results, lambda record: record.p99, "trireme", "real", model, 32)
        name, best = _best(results, lambda record: record.p99, PEERS, "real", model, 32, min)
        reached = p99 / best if p99 is not None and best else None
        what = f"real, {model}, 32 callers: trireme, p99"
        yield Ratio(what, name, "≤ 1 ×", reached, None if reached is None else reached <= 1.0)


def _many_callers(results: Results) -> Iterator[Ratio]:
    for regime in ("instant", "real"):
        for model in MODELS:
            few, many = (
                _json(results, lambda record: record.rate, "trireme", regime, model, callers)
                for callers in (8, 128)
            )
            reached = many / few if many is not None and few else None
            what = f"{regime}, {model}: trireme, 128 callers against 8"
            yield Ratio(what, "itself", "≥ 0.9 ×", reached, None if reached is None else reached >= 0.9)


def _memory(results: Results) -> Ratio:
    peak = max((record.own_memory for record in results.of(contestant="trireme")), default=None)
    megabytes = None if peak is None else peak / MEGABYTE
    what = "any: trireme, peak memory of everything but Triton, in MB"
    return Ratio(what, "-", "≤ 400", megabytes, None if megabytes is None else megabytes <= 400)


def _json(
    results: Results,
    value: Callable[[Record], float],
    contestant: str,
    regime: str,
    model: str,
    callers: int,
) -> float | None:
    """Return a contestant's median for JSON bodies; for a floor, that for ready tensors."""
    cell = {"contestant": contestant, "regime": regime, "model": model}
    if contestant == "loop":
        return results.median(value, form=READY, **cell)
    form = READY if contestant.startswith("triton") else "json"
    return results.median(value, form=form, callers=callers, **cell)


def _best(
    results: Results,
    value: Callable[[Record], float],
    others: Sequence[str],
    regime: str,
    model: str,
    callers: int,
    better: Callable[..., tuple[float, str]],
) -> tuple[str, float | None]:
    """Return the best of ``others`` that were measured, and its value."""
    values = [(_json(results, value, name, regime, model, callers), name) for name in others]
    measured = [(reached, name) for reached, name in values if reached is not None]
    if not measured:
        return " or ".join(others), None
    reached, name = better(measured)
    return name, reached
