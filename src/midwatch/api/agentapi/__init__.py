"""A session as clients of coder/agentapi know it: one conversation, its messages by number, running or stable."""
