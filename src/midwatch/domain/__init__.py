"""The nouns, such as task and session: each has its record, its states, its pure steps and the port it needs.

Imports `base`.
Not here: reading files or the clock, SQL, services, third-party packages.
"""
