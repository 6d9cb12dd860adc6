"""What callers and files of the reference systems send, exactly as they send it."""
