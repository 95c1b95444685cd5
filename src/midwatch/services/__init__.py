"""What one can ask the desk for, a service for each noun: tasks, sessions, approvals, automations, goals, handoffs.

Imports `domain` and `base`.
Not here: HTTP, SQL, child processes, third-party packages.
"""
