import time
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from sm.client import StreamingClient, Text, TextPayload


class Story(TextPayload):
    text: str = Field(min_length=1, description="What is told.")
    seconds: float = Field(0.02, ge=0, le=1, description="Between two words.")


class Telling(StreamingClient):
    """Tells a text again, a word at a time."""

    payload = Story
    result = Text()

    def stream(self, payload: Story) -> Iterator[str]:
        for word in payload.text.split():
            while word.startswith("/") and not Path(word).exists():
                time.sleep(0.01)
            yield f"{word} "
            time.sleep(payload.seconds)
