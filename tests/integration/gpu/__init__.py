"""The command for a machine with a GPU."""
