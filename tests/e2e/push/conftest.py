"""A small checkout to push from, Podman, a real registry and a fake AWS: as a team would have them, but on loopback."""

from tests.e2e.push.checkout import checkout, laptop, moto, pushing, registry

__all__ = ["checkout", "laptop", "moto", "pushing", "registry"]
