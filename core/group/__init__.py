"""Consumer groups: the rules of both protocols, as pure code. Knows no clock, wire or store."""
