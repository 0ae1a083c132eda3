"""The rules, as pure functions and values: standard library only.

This room does not know sockets, SQL, clocks, randomness or logging; time and ids are arguments.
"""
