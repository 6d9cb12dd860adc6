"""A folder for ``sys.path``, behind all others: what is in it counts where the real thing is missing."""
