"""Basics that every part uses: errors, the clock, ids, text, durations, schedules, the home directory.

Imports only the standard library, and cronsim in `schedule`.
Not here: nouns of the product, stores, programs, code that uses a network.
"""
