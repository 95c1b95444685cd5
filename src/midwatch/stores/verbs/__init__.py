"""Verbs: functions that read or change records within a transaction. They are the same for every store."""
