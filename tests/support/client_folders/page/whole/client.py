from sm.client import Client
from sm.client.payloads import BodyPayload


class Whole(Client):
    """How long a body is, and of which type it came."""

    payload = BodyPayload

    def inference(self, payload: BodyPayload) -> dict[str, object]:
        return {"bytes": len(payload.body), "content_type": payload.content_type}
