"""The part of a request that a payload carries, and the headers of its answer."""

from __future__ import annotations

from dataclasses import dataclass, field

from sm.client.sessions import Session


@dataclass
class RequestContext:
    """The request of a payload. It is one object because pydantic copies each private attribute."""

    #: The model version that the caller named; empty for the server's choice.
    version: str = ""
    #: The content type that the caller accepts.
    accept: str = "application/json"
    #: The caller's ``X-Amzn-SageMaker-*`` headers, names in lower case.
    headers: dict[str, str] = field(default_factory=dict)
    session: Session | None = None
    #: Headers of the answer.
    answer_headers: dict[str, str] = field(default_factory=dict)
    #: True if the caller sent an Accept header; False if ``accept`` is the default.
    accept_named: bool = True
