"""The runtime: a desk with its worker, engine and loops; also the server, the loopback port and backups.

Imports every room below.
Not here: rules of the product, commands.
"""
