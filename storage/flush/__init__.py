"""What a flush writes: payload, index rows, transactions, groups, publications. Knows no rule."""
