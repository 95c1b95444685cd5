"""Verbs: business steps as plain functions of a transaction, written once for every store."""
