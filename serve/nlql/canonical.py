"""One text for equal expressions, by which scorers are told apart."""

import json

from serve.nlql.json_ir import node_to_dict
from shards.nlql.ir import Expr


def canonical(node: Expr) -> str:
    """The JSON of a node with sorted keys. Kind of quotes and blanks do not show in it; how a function is spelt and type words do."""
    return json.dumps(node_to_dict(node), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
