"""The nouns of midwatch, such as task, session and agent.

Each noun has its record, its states, its pure steps and the port that it needs. Imports `base`. Not here: reading files
or the clock, SQL, services, third-party packages.
"""
