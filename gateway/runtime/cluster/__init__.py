"""Brokers of one database: live brokers, leaders, coordinators, and news from other brokers."""
