"""The part of the SageMaker inference toolkit that scripts import, for a box without the toolkit.

Names and meaning are the toolkit's; :mod:`sm.plugins.toolkit` does the work.
"""
