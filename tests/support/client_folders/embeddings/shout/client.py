"""A client that gives no embeddings."""

from sm.client import Client, TextPayload


class Shout(Client):
    payload = TextPayload

    def inference(self, payload: TextPayload) -> str:
        return payload.text.upper()
