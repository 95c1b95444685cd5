"""The HTTP interface: one route file per noun, all under `/api/v1`."""
