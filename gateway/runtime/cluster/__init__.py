"""Brokers of one database: who is live, who leads, who coordinates, what has changed elsewhere."""
