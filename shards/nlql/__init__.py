"""NLQL where the rows are: the query tree, what its expressions mean, and how a shard finds the rows of a query."""
