"""Stores: all SQL of midwatch. The port is `midwatch.domain.store`.

Imports `services`, `domain` and `base`, and the drivers of the databases.
Not here: rules of the product; a verb only writes the changes that a step has computed.
"""
