"""Who may call the scheduler: the access file, the identities that callers show, and the rights that follow."""
