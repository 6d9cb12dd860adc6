"""Answers in parts: server-sent events, AWS's event-stream frames and WebSockets."""
