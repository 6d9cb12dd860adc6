"""The source of a client that takes pictures, for tests that send them by way of S3."""

CLIENT = '''
from sm.client import Client, ImagePayload


class Look(Client):
    """The size of a picture."""

    payload = ImagePayload

    def inference(self, payload) -> list[int]:
        return list(payload.pixels.shape)
'''
