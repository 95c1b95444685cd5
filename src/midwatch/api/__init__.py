"""The HTTP interface: one route file for each noun, all under `/api/v1`; the console in `web`; each protocol a folder.

Imports `desk` and what is below it, but no store and no engine; FastAPI.
Not here: rules of the product, opening a home.
"""
