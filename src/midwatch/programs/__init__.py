"""Child processes, which start behind a gate, in a process group, with a guard and a sandbox; git; hook programs.

Imports `domain` and `base`.
Not here: the protocols between kinds of agents and their programs.
"""
