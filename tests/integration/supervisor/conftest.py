"""The run folder of a front."""

from tests.support.nginx_front import run

__all__ = ["run"]
