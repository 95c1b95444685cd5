"""Fakes of programs and services that the tests cannot use: a model, an agent."""
