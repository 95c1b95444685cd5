"""The services of the desk, mostly one for each kind of record, such as tasks, sessions, approvals and goals.

Imports `domain` and `base`.
Not here: HTTP, SQL, child processes, third-party packages.
"""
