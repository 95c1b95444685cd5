"""Kinds of channels. A new one is one file here, one line in `registry` and one parameter in the contract tests.

Imports `domain` and `base`, and the libraries of its kind.
Not here: when a notice is sent or tried again; the courier decides that.
"""
