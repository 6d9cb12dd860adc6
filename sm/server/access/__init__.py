"""Access to the public port: TLS, API keys and rate limits. All are off by default."""
