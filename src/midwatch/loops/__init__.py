"""What the leader does by itself: scheduler, courier, rescuer, pruner, routines; `leader_loop` is how each waits.

Imports `running`, `services`, `domain` and `base`.
Not here: work that somebody asked for, third-party packages.
"""
