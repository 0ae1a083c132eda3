"""Writes of a flush: payload, index rows, transactions, groups, publications. Knows no rule."""
