"""``sm new-client``: write the files of a new client."""
