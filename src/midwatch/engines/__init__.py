"""Engines: who hands out tasks. The port is `midwatch.domain.engine`.

Imports `running`, `services`, `domain` and `base`, and procrastinate.
Not here: how a task runs, SQL of the product's own tables.
"""
