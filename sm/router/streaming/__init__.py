"""Answers that leave while they are made: server-sent events, and the frames of AWS's event streams."""
