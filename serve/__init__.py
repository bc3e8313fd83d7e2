"""What a user meets: request, plan, scatter, null models, fusion, excerpts; HTTP and the page. Pure asyncio but for app.py."""
