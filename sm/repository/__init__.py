"""A model repository on disk: its configuration, models, ensembles and manifests."""
