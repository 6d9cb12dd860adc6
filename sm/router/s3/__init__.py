"""Payloads and results in S3, in the buckets that a setting names."""
