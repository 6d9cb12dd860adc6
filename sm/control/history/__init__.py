"""The last hour of a box in numbers, kept by the control plane for ``/dashboard`` and ``sm top``."""
