"""``sm check-client``: the contract test of a client."""
