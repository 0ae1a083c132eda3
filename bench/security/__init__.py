"""What security costs: ACLs, TLS, logins, and what many logins cost those who have logged in."""
