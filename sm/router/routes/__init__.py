"""The routes: the only modules that know HTTP. One module per family."""
