"""The command line. Modules here import nothing heavy at their top, so that `midwatch --help` is fast.

Imports every room below, but no store and no engine.
Not here: rules of the product; a command speaks through the client.
"""
