"""``sm package``: archives of a model repository, as the platform takes them from S3."""
