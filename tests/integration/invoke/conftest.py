"""``sm`` as a person runs it, and the environment that boto3 reads."""

from tests.support.sm_command import sm

__all__ = ["sm"]
