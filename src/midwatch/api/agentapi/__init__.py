"""The HTTP interface of coder/agentapi for a session: numbered messages, and the status `running` or `stable`."""
