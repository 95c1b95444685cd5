"""Kind `terminal`: an agent that runs in a terminal."""
