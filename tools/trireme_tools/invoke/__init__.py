"""``sm invoke``: one request, or many, to an endpoint, a URL or the local box."""
