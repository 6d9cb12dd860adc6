"""The HTTP routes, a module for each family. Nothing below them knows HTTP."""
