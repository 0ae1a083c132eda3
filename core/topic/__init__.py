"""Topics as values, and the rules for their names, counts and replicas."""
