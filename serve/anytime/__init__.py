"""Searches within a time: which spaces are asked in which round, when it is enough, and how a search goes on where its time ended."""
