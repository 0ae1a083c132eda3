"""Who is there: principals, mechanisms, verifiers, and how a user proves to be one."""
