"""The page: what people look at in a browser, and what they change there. Knows no SQL."""
