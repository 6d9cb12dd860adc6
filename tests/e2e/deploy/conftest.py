"""The real boto3 against moto's fake AWS, behind a proxy that can fail calls."""

from tests.e2e.deploy.account import cloud, proxy

__all__ = ["cloud", "proxy"]
