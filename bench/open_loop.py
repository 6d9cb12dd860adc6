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
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

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
    """Sends requests to one port, each on a connection of its own that is used again."""

    def __init__(self, plan: Plan) -> None:
        self._port = plan.port
        self.end = time.perf_counter() + plan.seconds
        self._sent: dict[str, bytes] = {}
        self._expected: dict[str, bytes] = {}
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self.outcomes = {model: Outcome() for model in plan.requests}
        for model, request in plan.requests.items():
            body = request["body"].encode()
            headers = {"Host": "bench", **request["headers"], "Content-Length": len(body)}
            head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            self._sent[model] = f"POST {request['path']} HTTP/1.1\r\n{head}\r\n".encode() + body
            self._expected[model] = request["expected"].encode()

    async def ask(self, model: str, due: float) -> bool:
        """Send a request, count its outcome, and return True if the answer was right."""
        outcome = self.outcomes[model]
        try:
            status, body = await asyncio.wait_for(self._exchange(self._sent[model]), ANSWER_TIMEOUT_S)
        except (OSError, EOFError, ValueError, asyncio.TimeoutError):
            outcome.failed += 1
            return False
        if status == 200 and self._expected[model] in body:
            now = time.perf_counter()
            outcome.seconds.append(now - due)
            outcome.in_time += now <= self.end
            return True
        if status in (429, 503):
            outcome.refused += 1
        else:
            outcome.failed += 1
        return False

    async def _exchange(self, sent: bytes) -> tuple[int, bytes]:
        """Exchange a message; try again if an idle connection turns out to be closed."""
        while self._idle:
            connection = self._idle.pop()
            try:
                return await self._on(connection, sent)
            except (OSError, EOFError):
                connection[1].close()
        return await self._on(await asyncio.open_connection("127.0.0.1", self._port, limit=2**20), sent)

    async def _on(
        self, connection: tuple[asyncio.StreamReader, asyncio.StreamWriter], sent: bytes
    ) -> tuple[int, bytes]:
        reader, writer = connection
        writer.write(sent)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        status = int(head.split(" ", 2)[1])
        if "\r\ntransfer-encoding: chunked" in head:
            body = b"".join([part async for part in chunks(reader)])
        else:
            body = await reader.readexactly(int(head.partition("\r\ncontent-length:")[2].split("\r\n")[0]))
        if "\r\nconnection: close" in head:
            writer.close()
        else:
            self._idle.append(connection)
        return status, body


async def chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the parts of a chunked body."""
    while size := int(await reader.readline(), 16):
        yield (await reader.readexactly(size + 2))[:-2]
    await reader.readline()


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
    caller, dice = Caller(plan), random.Random(plan.seed)
    moments = sorted(
        (moment, model)
        for model, rate in plan.rates.items()
        if rate
        for moment in arrivals(rate, plan.seconds, dice)
    )
    began = time.perf_counter()
    end = caller.end = began + plan.seconds
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
