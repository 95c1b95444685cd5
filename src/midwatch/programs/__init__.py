"""Child processes: start them behind a gate, guard, reap and sandbox them; git; hook programs.

Imports `domain` and `base`.
Not here: what a kind of agent says to its program.
"""
