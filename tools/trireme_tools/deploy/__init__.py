"""``sm deploy``, ``status``, ``logs``, ``delete`` and ``images``: endpoints of SageMaker, with boto3."""
