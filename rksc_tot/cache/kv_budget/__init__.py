"""Budgets of KV: the rows and bytes that one engine, several engines and each search hold, and at most may hold."""
