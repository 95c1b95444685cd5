"""Kinds of channels. A new kind needs a file here, a line in `registry` and a parameter in the contract tests.

Imports `wire`, `domain` and `base`, and the libraries that the kinds need.
Not here: the decision when a notice is sent or tried again; the courier decides this.
"""
