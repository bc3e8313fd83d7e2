"""Texts of files that are no text: PDF, Office, e-books, notebooks, mail, and the members of archives.

`registry.py` says which format a path has, `process.py` has files read where reading can be stopped, and every other module is imported
in that process alone.
"""
