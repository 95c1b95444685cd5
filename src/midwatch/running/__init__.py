"""The execution of claimed tasks until they end: worker, run, turn, slots, outcome, delegation, open agents.

Imports `services`, `domain` and `base`.
Not here: kinds of agents, stores, engines, the loops of the leader.
"""
