"""The standing attack: break a real box on purpose while callers check every answer. See docs/inside/standing-attack.md."""

import os

#: ``TRIREME_FULL_ATTACK=true``: every fault, and as many requests as take hours, instead of minutes.
FULL = os.environ.get("TRIREME_FULL_ATTACK") == "true"
#: Of all that is drawn.
SEED = int(os.environ.get("TRIREME_ATTACK_SEED", "1"))
