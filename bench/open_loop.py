"""A load generator for several models at once: at random moments (open loop) or without a pause.

    python -m bench.open_loop PLAN

PLAN is a file of JSON: :class:`Plan`. The last line of output is JSON: what became of each model's requests.
A time runs from the moment at which a request was due, so that one that was sent late is not taken for quick.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from bench.driver import ANSWER_TIMEOUT_S, Request

#: Seconds that a caller without a rest waits after a 429 or 503, as ``Retry-After`` asks.
RETRY_AFTER_S = 1.0
#: Seconds after the end in which answers to what was sent still count.
GRACE_S = 30.0


@dataclass(frozen=True)
class Plan:
    """``port`` of loopback is asked for ``seconds``; ``seed`` decides the moments.

    ``rates``: arrivals a second (Poisson) of each model. ``flood``: callers of each model without a rest.
    ``mix``: callers without a rest, each of whom takes its next request from ``shares``.
    """

    port: int
    seconds: float
    seed: int
    requests: Mapping[str, Mapping[str, Any]]
    rates: Mapping[str, float] = field(default_factory=dict)
    flood: Mapping[str, int] = field(default_factory=dict)
    mix: int = 0
    shares: Mapping[str, int] = field(default_factory=dict)


def plan_request(request: Request) -> Mapping[str, Any]:
    """Return a request in a form that JSON can carry."""
    return {**asdict(request), "body": request.body.decode(), "expected": request.expected.decode()}


@dataclass
class Outcome:
    """The outcome for one model: times of right answers, and the number of failures."""

    seconds: list[float] = field(default_factory=list)
    #: Right answers that came before the end.
    in_time: int = 0
    refused: int = 0
    failed: int = 0


class Caller:
    """Sends requests to one port, over as many connections as there are requests at once."""

    def __init__(self, plan: Plan, session: aiohttp.ClientSession, end: float) -> None:
        self._plan, self._session, self._end = plan, session, end
        self.outcomes = {model: Outcome() for model in plan.requests}

    async def ask(self, model: str, due: float) -> bool:
        """Send a request, count its outcome, and return True if the answer was right."""
        request, outcome = self._plan.requests[model], self.outcomes[model]
        url = f"http://127.0.0.1:{self._plan.port}{request['path']}"
        try:
            async with self._session.post(url, data=request["body"], headers=request["headers"]) as answer:
                body = await answer.text()
        except (OSError, asyncio.TimeoutError, aiohttp.ClientError):
            outcome.failed += 1
            return False
        if answer.status == 200 and request["expected"] in body:
            now = time.perf_counter()
            outcome.seconds.append(now - due)
            outcome.in_time += now <= self._end
            return True
        if answer.status in (429, 503):
            outcome.refused += 1
        else:
            outcome.failed += 1
        return False


def arrivals(rate: float, seconds: float, dice: random.Random) -> Iterator[float]:
    """Moments of a Poisson process, from 0."""
    moment = dice.expovariate(rate)
    while moment < seconds:
        yield moment
        moment += dice.expovariate(rate)


def sequence(shares: Mapping[str, int]) -> Sequence[str]:
    """Return one round of the models, each as often as its share says."""
    rounds = max(shares.values())
    return [model for number in range(rounds) for model, share in shares.items() if number < share]


async def run(plan: Plan) -> Mapping[str, Outcome]:
    timeout = aiohttp.ClientTimeout(ANSWER_TIMEOUT_S)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        return await run_in(session, plan)


async def run_in(session: aiohttp.ClientSession, plan: Plan) -> Mapping[str, Outcome]:
    dice = random.Random(plan.seed)
    moments = sorted(
        (moment, model)
        for model, rate in plan.rates.items()
        if rate
        for moment in arrivals(rate, plan.seconds, dice)
    )
    began = time.perf_counter()
    end = began + plan.seconds
    caller = Caller(plan, session, end)
    next_model = itertools.cycle(sequence(plan.shares)) if plan.mix else iter(())

    async def at_moments() -> None:
        tasks = []
        for moment, model in moments:
            await asyncio.sleep(max(0.0, began + moment - time.perf_counter()))
            tasks.append(asyncio.create_task(caller.ask(model, began + moment)))
        await asyncio.gather(*tasks)

    async def without_rest(model: str | None) -> None:
        while (now := time.perf_counter()) < end:
            if not await caller.ask(model or next(next_model), now):
                await asyncio.sleep(RETRY_AFTER_S)

    callers = [without_rest(model) for model, count in plan.flood.items() for _ in range(count)]
    callers += [without_rest(None) for _ in range(plan.mix)]
    work = asyncio.gather(at_moments(), *callers)
    try:
        await asyncio.wait_for(work, plan.seconds + GRACE_S)
    except asyncio.TimeoutError:
        unanswered = len(moments) - sum(
            len(outcome.seconds) + outcome.refused + outcome.failed
            for model, outcome in caller.outcomes.items()
            if model in plan.rates
        )
        print(f"{unanswered} requests had no answer {GRACE_S:g} s after the end", file=sys.stderr)
        for _, model in moments[len(moments) - max(0, unanswered) :]:
            caller.outcomes[model].failed += 1
    return caller.outcomes


def main(path: Path) -> None:
    plan = Plan(**json.loads(path.read_text()))
    outcomes = asyncio.run(run(plan))
    print(json.dumps({model: asdict(outcome) for model, outcome in outcomes.items()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
