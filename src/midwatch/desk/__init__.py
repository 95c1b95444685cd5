"""The settings, and the desk, which is all services of one home, with or without a server.

Imports every room below.
Not here: the execution of tasks, HTTP, commands.
"""
