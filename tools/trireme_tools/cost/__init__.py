"""``sm cost``: what models cost a month, each on an endpoint of its own and all on one."""
