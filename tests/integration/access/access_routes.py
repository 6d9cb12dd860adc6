"""The routes that need an API key."""

import re

from sm.control.paths import PATHS

ROUTES_THAT_NEED_A_KEY = [
    ("POST", "/invocations"),
    ("POST", "/endpoints/any/invocations"),
    ("POST", "/endpoints/any/invocations-response-stream"),
    ("GET", "/invocations-bidirectional-stream"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/rerank"),
    ("GET", "/v1/models"),
    ("GET", "/v2"),
    ("GET", "/v2/health/ready"),
    ("POST", "/v2/models/echo/infer"),
    *[("GET", re.sub("<.*?>", "probe", path.rule)) for path in PATHS if not path.is_open],
    ("POST", "/models"),
    ("DELETE", "/models/probe"),
    ("POST", "/models/probe/invoke"),
    ("GET", "/anything"),
    ("GET", "/ping/x"),
]
