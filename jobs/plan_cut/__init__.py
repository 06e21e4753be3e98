"""Cutting a physical plan at its shuffle exchanges: all that knows Catalyst's physical side."""
