"""Stores: SQL lives here and nowhere else. The port is `midwatch.domain.store`.

Imports `services`, `domain` and `base`, and the drivers.
Not here: rules of the product; a verb writes what a step has computed.
"""
