"""Spend: prices, the ledger, and the gateway that counts every request."""
