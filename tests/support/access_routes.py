"""The routes that need an API key."""

ROUTES_THAT_NEED_A_KEY = [
    ("POST", "/invocations"),
    ("POST", "/endpoints/any/invocations"),
    ("POST", "/endpoints/any/invocations-response-stream"),
    ("GET", "/invocations-bidirectional-stream"),
    ("GET", "/v2"),
    ("GET", "/v2/health/ready"),
    ("POST", "/v2/models/echo/infer"),
    ("GET", "/metrics"),
    ("GET", "/dashboard/data"),
    ("GET", "/models"),
    ("GET", "/models/probe"),
    ("POST", "/models"),
    ("DELETE", "/models/probe"),
    ("POST", "/models/probe/invoke"),
    ("GET", "/execution-parameters"),
    ("GET", "/openapi.json"),
    ("GET", "/anything"),
    ("GET", "//ping"),
    ("GET", "/ping/x"),
]
