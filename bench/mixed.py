"""Three models at one endpoint: ``python -m bench mixed``. What it measures: bench/reports/mixed.md.

Each draw starts a service with all three models in it, and asks for them together: at random moments at 50,
80 and 95 % of what the service can do; and one model without a rest while the others are asked a little. In
the results the phases take the place of the regimes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from bench.contestant import MODELS, Contestant
from bench.driver import Load
from bench.measuring import Measurements, Record, drive, summary
from bench.open_loop import Plan, plan_request
from bench.running import running, wait_until_idle
from sm.errors import CommandError

#: Each model's share of the arrivals.
SHARES: Mapping[str, int] = {"resnet": 4, "yolov5": 1, "bert_base": 4}
#: Shares of a service's capacity, and the callers that measure the capacity.
LOADS, CALLERS = (0.5, 0.8, 0.95), 16
#: The model that is flooded, and by how many callers; arrivals a second of the others.
FLOODED, FLOOD = "resnet", 32
LIGHT: Mapping[str, float] = {"yolov5": 1.0, "bert_base": 4.0}
#: Callers and seconds of each model's warm-up.
WARM_CALLERS, WARM_S = 4, 4.0


def draw(
    contestant: Contestant, number: int, measurements: Measurements, say: Callable[[str], None]
) -> Iterator[Record]:
    """Yield a record for each model in each phase: capacity, loads, light callers, and a flood."""
    seconds = measurements.seconds
    with running(contestant) as root:
        assert root is not None

        def phase(name: str, seconds: float = seconds, **plan: Any) -> list[Record]:
            wait_until_idle(root, 10)
            records = run_plan(contestant, root, number, name, seconds, **plan)
            for record in records:
                say(summary(record))
            return records

        for model in MODELS:
            phase("warm-up", WARM_S, flood={model: WARM_CALLERS})
        capacity = phase("capacity", mix=CALLERS, shares=dict(SHARES))
        yield from capacity
        rate = sum(record.rate for record in capacity)
        if not rate:
            raise CommandError(f"{contestant.name} gave no right answer.")
        for load in measurements.loads:
            of_all = load * rate / sum(SHARES.values())
            yield from phase(f"{load:.0%}", rates={model: of_all * share for model, share in SHARES.items()})
        yield from phase("light", rates=dict(LIGHT))
        yield from phase("flood", rates=dict(LIGHT), flood={FLOODED: FLOOD})


def run_plan(
    contestant: Contestant, root: int, number: int, phase: str, seconds: float, **plan: Any
) -> list[Record]:
    """Run a plan; return a record for each model in it. Answers with 429 or 503 are ``lost``."""
    requests = {}
    for model in MODELS:
        request = contestant.request(model, "json")
        assert request is not None
        requests[model] = plan_request(request)
    file = contestant.folder / "plan.json"
    # The same moments for every service.
    seed = 1000 * number + len(phase)
    whole_plan = Plan(contestant.port, seconds, seed, requests, **plan)
    file.write_text(json.dumps(asdict(whole_plan)))
    command = (sys.executable, "-m", "bench.open_loop", str(file))
    output, use = drive(contestant, root, command, seconds)
    try:
        outcomes = json.loads(output.strip().splitlines()[-1])
    except (ValueError, IndexError):
        raise CommandError(f"what asks {contestant.name} ended without a result:\n{output}") from None
    answers = max(1, sum(len(outcome["seconds"]) for outcome in outcomes.values()))
    callers = whole_plan.mix + sum(whole_plan.flood.values())
    records = []
    for model, outcome in outcomes.items():
        times, failed, refused = outcome["seconds"], outcome["failed"], outcome["refused"]
        if times or failed or refused:
            load = Load.of(times, failed, refused, seconds).with_use(use.seconds * len(times) / answers, use)
            cell = (contestant.name, phase, model, "json", callers, number)
            # What comes after the end is answered, but not in this time.
            records.append(Record(*cell, outcome["in_time"] / seconds, **asdict(load)))
    return records
