"""The part of the SageMaker inference toolkit that scripts import, for a machine without the toolkit.

Its names and their meaning are the toolkit's; the work is done by :mod:`sm.plugins.toolkit`.
"""
