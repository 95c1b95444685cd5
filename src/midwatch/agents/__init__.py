"""Kinds of agents. A new kind is one file here, one line in `registry` and one parameter in the contract tests.

Imports `programs`, `wire`, `services`, `domain` and `base`, and the third-party libraries that a kind needs.
Not here: the code that claims tasks, limits their time and ends them.
"""
