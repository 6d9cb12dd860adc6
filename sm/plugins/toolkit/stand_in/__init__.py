"""A folder at the end of ``sys.path``: its packages are used if the real ones are missing."""
