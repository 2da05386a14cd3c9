"""Jobs that sample tokens: generations, and drafts of their next tokens."""
