"""``sm`` with the real boto3, and moto"s fake AWS behind a proxy that can put faults in between."""

from tests.support.deploy_account import cloud, proxy

__all__ = ["cloud", "proxy"]
