"""The options of the commands, and the config file."""
