"""A client that sleeps as long as the payload says, to keep workers busy."""

import time

from sm.client import Client, Payload


class Seconds(Payload):
    seconds: float = 1.0


class Slow(Client):
    payload = Seconds

    def inference(self, payload: Seconds) -> object:
        time.sleep(payload.seconds)
        return payload.seconds
