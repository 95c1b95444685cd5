"""The shapes of JSON that the HTTP interface sends and takes.

Imports `domain` and `base`, and pydantic in `fields` and `bodies`.
Not here: routes, rules, anything that is done with a shape.
"""
