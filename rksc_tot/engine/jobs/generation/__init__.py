"""Jobs that write tokens: generations, and the drafts of their next tokens."""
