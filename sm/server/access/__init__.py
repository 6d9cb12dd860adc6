"""Who may call the box, and how often: API keys, rate limits and the certificate. All off by default."""
