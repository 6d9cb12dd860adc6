"""``sm template`` and ``sm iam``: a deployment as documents, for teams that deploy with their own tools."""
