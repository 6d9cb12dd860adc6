"""What only the gateway can fail with; everything else is in :mod:`sm.errors`."""

from __future__ import annotations

from sm.errors import NotFound, TriremeError, UnknownModel


class NoSuchModel(UnknownModel):
    """No such model or version: the answer lists what there is. 400, as this API's callers know it."""

    status = 400


class NoSuchObject(NotFound):
    """The bucket has no object of that key."""

    code = "no_such_object"


class LoadFailed(TriremeError):
    """A model cannot be loaded: everybody who waited for it is told the reason."""

    code = "load_failed"


class Unauthorized(TriremeError):
    """The request brings no key."""

    status, code = 401, "unauthorized"


class SlowBody(TriremeError):
    """The request's body takes too long, or comes too slowly."""

    status, code = 408, "request_timeout"
