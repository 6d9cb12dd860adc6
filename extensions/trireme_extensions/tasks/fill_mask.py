"""The task fill-mask: the most likely words in the place of ``[MASK]``."""

from __future__ import annotations

from sm.client.fill_mask import MaskClient
from trireme_extensions.tasks.task_file import Task


class FillMask(MaskClient, Task):
    """Fill-mask: sentences with ``[MASK]`` filled, best first, each with its probability.

    Serves any model that takes ``input_ids`` and has one output with a score for each word.
    """
