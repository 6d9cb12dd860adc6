"""What a payload knows of its request, and the headers of the answer."""

from __future__ import annotations

from dataclasses import dataclass, field

from sm.client.sessions import Session


@dataclass
class RequestContext:
    """What a payload knows beside its fields: one thing, since pydantic minds each private attribute."""

    version: str = ""
    accept: str = "application/json"
    #: The caller's ``X-Amzn-SageMaker-*`` headers, names in lower case.
    headers: dict[str, str] = field(default_factory=dict)
    session: Session | None = None
    #: Headers of the answer.
    answer_headers: dict[str, str] = field(default_factory=dict)
    #: Whether the caller asked for ``accept``; False where it is the default.
    accept_named: bool = True
