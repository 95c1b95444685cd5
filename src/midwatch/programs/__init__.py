"""Child processes: start them behind a gate, guard, reap and sandbox them; git; hook programs.

Imports `domain` and `base`.
Not here: the protocols between kinds of agents and their programs.
"""
