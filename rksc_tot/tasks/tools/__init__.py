"""Example tasks with a tool: code with unit tests, and problems with a calculator."""
