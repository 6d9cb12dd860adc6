"""Read the present state of a box and the numbers of its last minute."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from sm.errors import CommandError

TIMEOUT_S = 5.0
#: A time after every point, so that the answer has the present state only.
NO_POINTS = 1e12


class BoxNumbers:
    """The box at ``url``."""

    def __init__(self, url: str, api_key: str = "") -> None:
        if not url.startswith(("http://", "https://")):
            raise CommandError(f"{url} is not an address of a box: it looks like http://localhost:8080.")
        self.url = url.rstrip("/")
        self._headers = {"x-api-key": api_key} if api_key else {}

    def read(self) -> dict[str, Any]:
        """Return the box's answer. Raises :class:`CommandError` with the reason if there is none."""
        request = urllib.request.Request(  # noqa: S310 - the scheme is checked above
            f"{self.url}/dashboard/data?since={NO_POINTS:.0f}", headers=self._headers
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
                numbers = json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                raise CommandError(self._explain(error)) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise CommandError(
                f"no box answers at {self.url}: {reason}. Start one with: make serve"
            ) from None
        if not isinstance(numbers, dict) or "box" not in numbers:
            raise CommandError(f"what answers at {self.url} is not a box of Trireme.")
        return numbers

    def _explain(self, error: urllib.error.HTTPError) -> str:
        if error.code == 404:
            return f"{self.url} has no /dashboard/data: it is not a box of Trireme, or an older one."
        if error.code in (401, 403):
            return f"{self.url} wants an API key: name a file with --api-key ({_reason(error)})."
        return f"{self.url} answers {error.code}: {_reason(error)}."


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read())["error"])
    except (OSError, ValueError, LookupError, TypeError):
        return str(error.reason)
