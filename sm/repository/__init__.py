"""A model repository on disk: read it, check it, and complete it for this machine."""
