"""Decides who computes what: turns a world into slot ranges and keeps the ledger."""
