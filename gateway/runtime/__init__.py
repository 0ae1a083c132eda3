"""asyncio around `core`, shared by all front-ends: decide, store, apply, answer.

Knows no protocol and no SQL.
"""
