"""The public address of ``read_folder``, which an extension has: scripts of people import it."""

from __future__ import annotations

from sm.entry_points import moved

read_folder = moved(__name__).read_folder
