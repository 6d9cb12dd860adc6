"""What a payload knows of its request, and the headers of the answer."""

from __future__ import annotations

from dataclasses import dataclass, field

from sm.client.sessions import Session


@dataclass
class RequestContext:
    """The request that a payload came with. One object, because pydantic copies each private attribute."""

    version: str = ""
    accept: str = "application/json"
    #: The caller's ``X-Amzn-SageMaker-*`` headers, names in lower case.
    headers: dict[str, str] = field(default_factory=dict)
    session: Session | None = None
    #: Headers of the answer.
    answer_headers: dict[str, str] = field(default_factory=dict)
    #: True if the caller sent an Accept header; False if ``accept`` is the default.
    accept_named: bool = True
