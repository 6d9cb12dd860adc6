"""``sm new-client``: the files that a client begins with."""
