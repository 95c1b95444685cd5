"""Stores: where the desk keeps everything. The port is `midwatch.store`."""
