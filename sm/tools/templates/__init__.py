"""``sm template`` and ``sm iam``: a deployment as documents, for teams that let no command make things."""
