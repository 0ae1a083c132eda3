"""The benchmark: stock clients against us, peers and raw COPY, in turn, on the machine it is on.

It starts programs and talks the wire; it must not import a server room (micro benches excepted).
"""
