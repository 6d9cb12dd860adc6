"""The words of a text, one part each, with a rest before each but the first.

A word that is the path of a file waits until the file is there.
"""

import time
from collections.abc import Iterator
from pathlib import Path

from sm.client import StreamingClient, TextPayload
from sm.errors import BadInput


class Text(TextPayload):
    seconds: float = 0.0


class Words(StreamingClient):
    payload = Text

    def stream(self, payload: Text) -> Iterator[object]:
        for number, word in enumerate(payload.text.split()):
            time.sleep(payload.seconds if number else 0)
            while word.startswith("/") and not Path(word).exists():
                time.sleep(0.01)
            if word == "bad":
                raise BadInput("a bad word")
            # ``zero`` raises an exception, as a faulty client does.
            yield {"zero": 1 // 0} if word == "zero" else word
