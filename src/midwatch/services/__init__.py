"""The services of the desk, one for each kind of record: tasks, sessions, approvals, automations, goals, handoffs.

Imports `domain` and `base`.
Not here: HTTP, SQL, child processes, third-party packages.
"""
