"""Trireme: nginx, a Flask/gunicorn router with client plugins, and a local Triton in one box."""

__version__ = "0.2.0"
#: ONNX Runtime sends telemetry unless this is set before it is imported, and warns if its home is read-only.
NO_TELEMETRY = {"ORT_DISABLE_TELEMETRY": "1"}
