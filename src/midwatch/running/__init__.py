"""One claimed task until its end: worker, run, turn, slots, outcome, delegation, open agents.

Imports `services`, `domain` and `base`.
Not here: kinds of agents, stores, engines, what the leader does by itself.
"""
