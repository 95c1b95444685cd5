"""Kind `acp`: coding agents that speak the Agent Client Protocol."""
