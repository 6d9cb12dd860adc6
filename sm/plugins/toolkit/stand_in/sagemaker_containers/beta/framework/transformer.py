"""Scripts import this name but call nothing of it: the box calls a script's functions itself."""
