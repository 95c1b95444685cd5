"""Kinds of agents. A new one is one file here, one line in `registry` and one parameter in the contract tests.

Imports `programs`, `wire`, `services`, `domain` and `base`, and the libraries of its kind.
Not here: how tasks are claimed, timed or ended.
"""
