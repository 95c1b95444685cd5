"""Engines: who hands out tasks. The port is `midwatch.engine`."""
