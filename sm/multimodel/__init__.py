"""Multi-model mode: archives are loaded and unloaded while the box runs."""
