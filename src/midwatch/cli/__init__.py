"""The command line. Only the module of the command in use is imported, and large libraries only inside functions.

Imports all packages below `cli`, but no store and no engine.
Not here: rules of the product; a command uses the client.
"""
