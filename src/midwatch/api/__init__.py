"""The HTTP interface: a route file per noun, all under `/api/v1`; the console in `web`; agentapi in its own folder.

Imports `desk`, the packages below `desk`, and FastAPI, but no store and no engine.
Not here: rules of the product, and code that opens a home.
"""
