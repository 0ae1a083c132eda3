"""Who is there: principals, mechanisms, verifiers, proofs of identity; and what they may do."""
