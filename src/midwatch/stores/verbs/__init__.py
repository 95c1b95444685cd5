"""Verbs: business steps as functions of a transaction, the same for every store."""
