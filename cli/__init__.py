"""The command line: what a person types, and the sentences that answer it.

Most commands are clients of any Kafka; only `serve` and `migrate` start rooms of the server. No
command knows a handler, a rule or a statement.
"""
