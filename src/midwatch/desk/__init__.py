"""The settings, and the desk: all services of one home, always there.

Imports every room below.
Not here: what runs tasks, HTTP, commands.
"""
