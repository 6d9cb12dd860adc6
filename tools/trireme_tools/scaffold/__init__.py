"""``sm new-client``, ``new-model`` and ``eject``: write the files of a client or of a model."""
