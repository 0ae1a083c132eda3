"""A group of KIP-848's protocol, and classic members in it. Knows no store and no clock."""
