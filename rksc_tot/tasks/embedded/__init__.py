"""Embedded models: small weights of built-in tasks that ship with the package, and the script that trains them."""
