"""The command line. Modules here import large libraries inside functions, so that `midwatch --help` is fast.

Imports all packages below `cli`, but no store and no engine.
Not here: rules of the product; a command uses the client.
"""
