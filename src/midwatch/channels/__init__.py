"""Kinds of channels.

A new kind needs a file here, a line in `registry` and a parameter in the contract tests. Imports `wire`, `domain` and
`base`, and the libraries that the kinds need. Not here: when a notice is sent or tried again, which the courier
decides.
"""
