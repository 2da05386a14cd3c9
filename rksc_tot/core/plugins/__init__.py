"""How plug-ins are found, configured, called and stored."""
