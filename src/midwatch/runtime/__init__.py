"""The runtime: one desk and, with work, the worker, the engine and the loops; serving it, its loopback, its backup.

Imports every room below.
Not here: rules of the product, commands.
"""
