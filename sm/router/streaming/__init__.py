"""Answers in parts: server-sent events, and AWS's event-stream frames."""
