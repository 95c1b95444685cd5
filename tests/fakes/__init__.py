"""Stand-ins for what the tests cannot have: a model, an agent."""
