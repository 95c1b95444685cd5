"""Kind `llm`: a model and its tools, step by step."""
