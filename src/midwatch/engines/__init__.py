"""Engines, which claim tasks for this process and pass them to the worker. The port is `midwatch.domain.engine`.

Imports `running`, `services`, `domain` and `base`, and procrastinate.
Not here: how a task runs, SQL of the product's own tables.
"""
