"""Part the models' processes from the others by the kernel's Landlock, which needs no root.

A process in a domain of Landlock cannot look into a process outside of it (its memory, environment and open
files), and, from Linux 6.12 on, sends it no signal. Where the kernel or the container's seccomp profile lacks
Landlock, nothing changes.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

#: System calls, which have the same numbers on all architectures, and a flag that asks for the version.
CREATE_RULESET, RESTRICT_SELF, GET_VERSION = 444, 446, 1
#: The first version with a scope for signals.
SIGNALS_VERSION = 6
#: What the domain forbids: making devices, which only root can. A domain must forbid something.
MAKE_CHAR, MAKE_BLOCK = 1 << 6, 1 << 11
SCOPE_SIGNAL = 1 << 1


def landlock() -> Callable[[], None]:
    """Return a function for a child between fork and exec that puts it and all its children into a domain.

    It needs ``no_new_privs``.
    """
    # Loaded now: the dynamic linker must not run between fork and exec.
    system_call = ctypes.CDLL(None, use_errno=True).syscall
    version = system_call(CREATE_RULESET, None, ctypes.c_size_t(0), GET_VERSION)
    # struct landlock_ruleset_attr: accesses to files and network, scopes. Older kernels take its beginning.
    attributes = (ctypes.c_uint64 * 3)(MAKE_CHAR | MAKE_BLOCK, 0, SCOPE_SIGNAL)
    size = ctypes.c_size_t(
        ctypes.sizeof(attributes) if version >= SIGNALS_VERSION else ctypes.sizeof(ctypes.c_uint64)
    )

    def enter() -> None:
        rules = system_call(CREATE_RULESET, ctypes.byref(attributes), size, 0)
        if rules >= 0:
            system_call(RESTRICT_SELF, rules, 0)
            os.close(rules)

    return enter
