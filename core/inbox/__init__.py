"""The inbox: records of applications' own transactions, on their way into the log."""
