"""Sondage as tools of a language model, over the Model Context Protocol: stdio and streamable HTTP, by the official SDK (`mcp`)."""
