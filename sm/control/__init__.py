"""What answers while all workers are busy: /ping, /models, /metrics, the pages, loading and unloading."""
