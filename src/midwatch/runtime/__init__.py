"""The runtime, which is a desk with worker, engine and loops; the server, the loopback port and backups.

Imports every room below.
Not here: rules of the product, commands.
"""
