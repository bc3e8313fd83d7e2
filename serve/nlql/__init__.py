"""NLQL where it is asked: text, JSON and builder become one query tree, which is planned, sent to the shards, and answered."""
