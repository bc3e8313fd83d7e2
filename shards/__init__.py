"""What a shard is: identity, corpora, segments, layers, null models. No Ray, no HTTP, no environment."""
