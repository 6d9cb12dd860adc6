"""The request ids that a caller may choose. nginx and the router use the same patterns."""

from __future__ import annotations

import re
from collections.abc import Mapping

#: The platform's grammar: 1 to 64 printable characters, without those that JSON would escape.
#: https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_runtime_InvokeEndpoint.html
INFERENCE_ID = r"[!#-\[\]-~][ !#-\[\]-~]{0,63}"
#: The same characters in ``X-Request-Id``, which proxies and callers outside AWS send.
REQUEST_ID = r"[!#-\[\]-~][ !#-\[\]-~]{0,127}"
_FIELD = r"[A-Za-z]{1,20}=[0-9A-Za-z.:|?_-]{1,64}"
#: Fields separated by semicolons, one of them Root. Load balancers put Self before it, and Parent, Sampled
#: and Lineage after it. https://docs.aws.amazon.com/xray/latest/devguide/xray-concepts.html
TRACE_ID = (
    r"(?=.{1,256}$)"
    rf"(?:{_FIELD};){{0,6}}Root=1-[0-9A-Fa-f]{{8}}-[0-9A-Fa-f]{{24}}(?:;{_FIELD}){{0,6}}"
)
#: Headers that may carry an id, in order: nginx's choice, else the headers from which nginx chooses.
_SOURCES = tuple(
    (header, re.compile(pattern))
    for header, pattern in (
        ("HTTP_X_TRIREME_REQUEST_ID", f"{REQUEST_ID}|{TRACE_ID}"),
        ("HTTP_X_AMZN_SAGEMAKER_INFERENCE_ID", INFERENCE_ID),
        ("HTTP_X_REQUEST_ID", REQUEST_ID),
        ("HTTP_X_AMZN_TRACE_ID", TRACE_ID),
    )
)


def given_id(environ: Mapping[str, object]) -> str | None:
    """Return the id in a request's headers; None if no header has a valid one."""
    for header, pattern in _SOURCES:
        value = environ.get(header)
        if isinstance(value, str) and pattern.fullmatch(value):
            return value
    return None
