"""Agents: how each runtime is found, started, spoken to and stopped."""
