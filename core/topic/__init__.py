"""Topics as values, and the rules of their names, counts and replicas."""
