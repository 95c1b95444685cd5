"""The shapes of the JSON that the HTTP interface sends and receives: one class for each JSON object.

Imports `domain` and `base`, and pydantic in `fields` and `bodies`.
Not here: routes, rules, code that uses a shape.
"""
