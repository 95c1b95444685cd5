"""Hidden code: whether a plain command may run something that its words do not show.

A rule that denies `git push` cannot see what `python -c CODE` or `xargs git` runs. A person is asked about such a
command. `command` decides about a command, and `text` about a text that may be a command or prose. `program` finds the
program that a command starts. Each of the other modules knows the arguments of one sort of program.
"""
