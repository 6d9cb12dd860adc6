"""One request: parse it, dispatch it to a client or to Triton, and respond."""
