"""asyncio around `core`, shared by the front-ends: decide, store, apply, answer.

Knows no protocol and no SQL.
"""
