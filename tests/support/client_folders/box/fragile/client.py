"""A client that always raises an exception."""

from sm.client import Client, Payload


class Fragile(Client):
    payload = Payload

    def inference(self, payload: Payload) -> object:
        return {"quotient": 1 // 0}
