"""The background loops of the leader: scheduler, courier, rescuer, pruner, routines; `leader_loop` is their base.

Imports `running`, `services`, `domain` and `base`.
Not here: work that a user requested, third-party packages.
"""
