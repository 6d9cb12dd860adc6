"""The errors of the gateway alone; all others are in :mod:`sm.errors`."""

from __future__ import annotations

from sm.errors import NotFound, TriremeError, UnknownModel


class NoSuchModel(UnknownModel):
    """No such model or version; the answer lists those that exist. 400, as callers of this API expect."""

    status = 400


class NoSuchObject(NotFound):
    """The bucket has no object of that key."""

    code = "no_such_object"


class LoadFailed(TriremeError):
    """A model cannot be loaded; every request that waited for it gets the reason."""

    code = "load_failed"


class Unauthorized(TriremeError):
    """The request has no key."""

    status, code = 401, "unauthorized"


class SlowBody(TriremeError):
    """The request's body takes too long, or is below the minimum rate."""

    status, code = 408, "request_timeout"
