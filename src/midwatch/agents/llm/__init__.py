"""Kind `llm`: a model and its tools."""
