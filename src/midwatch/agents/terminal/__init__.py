"""Kind `terminal`: an agent that lives in a terminal."""
