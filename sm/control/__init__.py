"""The plane that answers while all workers are busy: /ping, /models, /metrics, the pages, loading."""
