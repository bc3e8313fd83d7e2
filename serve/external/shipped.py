"""Mappings that come with Sondage, by the name that `use` gives them in a file of sources."""

from typing import Any

SHIPPED: dict[str, dict[str, Any]] = {
    # https://docs.openalex.org/api-entities/works: lists of works, with cursors
    "openalex": {
        "kind": "http",
        "about": "OpenAlex: scholarly works with abstracts, all fields of science",
        "url": "https://api.openalex.org/works",
        "params": {"search": "{query}", "per-page": "{n}", "cursor": "{page}", "api_key": "{key}"},
        "results": "results",
        "fields": {
            "id": "id",
            "title": ["title", "display_name"],
            "text": {"path": "abstract_inverted_index", "as": "inverted_index"},
            "url": ["doi", "primary_location.landing_page_url", "id"],
            "date": "publication_date",
            "metadata": {
                "authors": "authorships[].author.display_name",
                "venue": "primary_location.source.display_name",
                "type": "type",
                "language": "language",
                "cited_by": "cited_by_count",
                "pdf": "open_access.oa_url",
            },
        },
        "paging": {"kind": "cursor", "first": "*", "next": "meta.next_cursor", "size": 100},
    },
    # https://docs.exa.ai/reference/search
    "exa": {
        "kind": "http",
        "about": "Exa: pages of the web with their text",
        "url": "https://api.exa.ai/search",
        "method": "POST",
        "headers": {"x-api-key": "{key}"},
        "body": {"query": "{query}", "numResults": "{n}", "contents": {"text": {"maxCharacters": 20_000}}},
        "results": "results",
        "fields": {
            "id": ["id", "url"],
            "title": "title",
            "text": ["text", "summary", "highlights[]"],
            "url": "url",
            "date": "publishedDate",
            "metadata": {"author": "author", "score": "score"},
        },
    },
}
# A Sondage server's own tool `search`, as one example of another MCP server: its url, or its command, are the user's to say.
SHIPPED["sondage"] = {
    "kind": "mcp",
    "about": "another Sondage",
    "tool": "search",
    "arguments": {"query": "{query}", "k": "{n}", "max_tokens": 20_000},
    "results": "hits",
    "fields": {"id": "id", "title": "path", "text": "text", "metadata": {"line": "line"}},
}
