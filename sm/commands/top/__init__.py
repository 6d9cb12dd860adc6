"""``sm top``: the numbers of a running box in a terminal, as its dashboard shows them."""
