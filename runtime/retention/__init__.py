"""What is kept on request: sessions, conversations, leases, holds."""
