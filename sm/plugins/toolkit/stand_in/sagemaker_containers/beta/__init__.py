"""The one package of the older toolkit that scripts import from."""
