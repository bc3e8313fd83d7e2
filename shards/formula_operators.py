"""What a formula says: the operator tree of a row of signs. Notations of the same thing give the same tree.

`\\frac{a}{b}`, `a/b` and `a \\div b`; `a > b` and `b < a`; brackets that only group; the order of what is added, multiplied or equated
(`Node.children` of these have one and the same edge); `\\exp(x)` and `e^x`; `x^{1/2}` and a root; `a - b` and `-b + a`.

The grammar is that of a reader who does not know what the letters stand for: f(x + 1) and a(b + c) are read alike. Every row gives a
tree, however broken.
"""

from dataclasses import dataclass, field

from shards.formula_layout import Row, Sign
from shards.formula_symbols import CONCRETE, LIMITS, VARIABLE

# Edges from a node to its children.
ANY, FIRST, SECOND, THIRD, FURTHER = 17, 18, 19, 20, 21  # ANY: of operations whose operands may change places
INDEX, UPPER, LOWER, BODY, PRIME, ACCENT = 22, 23, 24, 25, 26, 27
_ORDERED = (FIRST, SECOND, THIRD, FURTHER)
_MIRRORED = {">": "<", "≥": "≤", "≫": "≪", "≻": "≺", "≽": "≼", "⊃": "⊂", "⊇": "⊆", "∋": "∈", "←": "→", "⇐": "⇒", "≯": "≮"}
_SYMMETRIC = frozenset("= ≠ ≡ ≈ ≅ ≃ ∼ ⇔ ↔ ∥ ⟂ ≍ ≢".split())
_FENCES = {"(": ")", "[": "]", "{": "}", "⟨": "⟩", "⌊": "⌋", "⌈": "⌉"}
_NAMED_FENCES = {"⟨": "⟨⟩", "⌊": "⌊⌋", "⌈": "⌈⌉", "|": "| |", "‖": "‖ ‖", "{": "{ }"}


@dataclass(slots=True)
class Node:
    """An operation, or what is operated on. kind: CONCRETE, VARIABLE, NUMBER; children: (edge, node)."""

    label: str
    kind: int = CONCRETE
    children: list[tuple[int, "Node"]] = field(default_factory=list)


@dataclass(slots=True)
class _Group:
    """What stands between two fences, which bear the scripts of the closing one."""

    opening: str
    closing: str
    items: list["_Item"]
    scripts: Sign


_Item = Sign | _Group
_BEFORE_OPERANDS = frozenset("open relation additive multiplicative separator big function prefix".split())


def operator_tree(row: Row) -> Node | None:
    """The tree of a row; None of an empty one."""
    return _parse(_fenced(row)) if row else None


def _fenced(row: Row) -> list[_Item]:
    """The row with all that is fenced as groups. Bars open where nothing stands that they could close."""
    stack: list[tuple[Sign | None, list[_Item]]] = [(None, [])]
    for i, sign in enumerate(row):
        opener, items = stack[-1]
        if sign.role == "open":
            stack.append((sign, []))
        elif sign.role == "close" and any(fence is not None and fence.role == "open" for fence, _ in stack):
            while stack[-1][0] is not None and stack[-1][0].role != "open":  # a bar that nothing closed
                bar, inner = stack.pop()
                stack[-1][1].extend([_relation(bar), *inner])
            fence, inner = stack.pop()
            assert fence is not None
            stack[-1][1].append(_Group(fence.label, sign.label, inner, sign))
        elif sign.role == "bar" or (sign.role == "relation" and sign.label == "|"):
            previous = row[i - 1] if i else None
            begins = previous is None or previous.role in _BEFORE_OPERANDS or (previous.role == "bar" and previous is not opener)
            if (
                opener is not None
                and opener.label == sign.label
                and opener.role != "open"
                and items
                and previous is not None
                and previous.role not in _BEFORE_OPERANDS
            ):
                stack.pop()
                stack[-1][1].append(_Group(sign.label, sign.label, items, sign))
            elif begins and any(later.label == sign.label for later in row[i + 1 :]):
                stack.append((sign, []))
            else:
                items.append(_relation(sign))
        elif sign.role != "close":
            items.append(sign)
    while len(stack) > 1:
        fence, inner = stack.pop()
        stack[-1][1].extend([_relation(fence), *inner] if fence is not None and fence.role != "open" else inner)
    return stack[0][1]


def _relation(bar: Sign | None) -> Sign:
    assert bar is not None
    return Sign(bar.label, "relation", sub=bar.sub, sup=bar.sup)


def _role(item: _Item) -> str:
    return item.role if isinstance(item, Sign) else "group"


def _split(items: list[_Item], role: str) -> tuple[list[list[_Item]], list[Sign]]:
    parts: list[list[_Item]] = [[]]
    between: list[Sign] = []
    for item in items:
        if isinstance(item, Sign) and (item.role == role or (role == "separator" and item.label.startswith("text ") and len(items) > 1)):
            between.append(item)
            parts.append([])
        else:
            parts[-1].append(item)
    return parts, between


def _parse(items: list[_Item]) -> Node | None:
    """Commas bind least, then relations."""
    parts, commas = _split(items, "separator")
    if commas:
        nodes = [node for part in parts if (node := _parse(part))]
        return _ordered(",", nodes) if len(nodes) != 1 else nodes[0]
    return _related(items)


def _related(items: list[_Item]) -> Node | None:
    """a = b = c is one equation of three; of mixed chains each relation holds what is left of it."""
    parts, relations = _split(items, "relation")
    if not relations:
        return _added(items)
    nodes = [_added(part) for part in parts]
    if len({sign.label for sign in relations}) == 1 and relations[0].label in _SYMMETRIC:
        return Node(relations[0].label, CONCRETE, [(ANY, node) for node in nodes if node])
    left = nodes[0]
    for sign, right in zip(relations, nodes[1:], strict=True):
        label, first, second = sign.label, left, right
        if label in _MIRRORED:
            label, first, second = _MIRRORED[label], right, left
        if label in _SYMMETRIC:
            left = Node(label, CONCRETE, [(ANY, node) for node in (first, second) if node])
        else:
            left = Node(label, CONCRETE, [(edge, node) for edge, node in ((FIRST, first), (SECOND, second)) if node])
        _scripted(left, sign, LOWER, UPPER)
    return left


def _added(items: list[_Item]) -> Node | None:
    """Sums; what is subtracted is a negative summand."""
    parts: list[tuple[str, list[_Item]]] = [("+", [])]
    for item in items:
        if isinstance(item, Sign) and item.role == "additive":
            if parts[-1][1] or len(parts) == 1:
                parts.append((item.label, []))
            else:  # the second of two signs in a row
                parts[-1] = ("-" if {parts[-1][0], item.label} == {"+", "-"} else item.label, [])
        else:
            parts[-1][1].append(item)
    summands: list[tuple[int, Node]] = []
    label = ""
    for sign, part in parts:
        node = _multiplied(part)
        if node is None:
            continue
        if sign in ("-", "±", "∓"):
            node, sign = Node("neg" if sign == "-" else sign, CONCRETE, [(ANY, node)]), "+"
        if sign != "+" and summands:  # unions and the like: each its own
            if label != sign:
                summands = [(ANY if sign != "∖" else FIRST, _sum(label or "+", summands))]
                label = sign
            summands.append((ANY if sign != "∖" else SECOND, node))
            continue
        if label not in ("", "+"):
            summands = [(ANY, _sum(label, summands))]
        label = "+"
        summands += node.children if node.label == "+" and node.kind == CONCRETE else [(ANY, node)]
    return _sum(label or "+", summands) if summands else None


def _sum(label: str, children: list[tuple[int, Node]]) -> Node:
    return children[0][1] if len(children) == 1 else Node(label, CONCRETE, children)


def _multiplied(items: list[_Item]) -> Node | None:
    """Products, written or not, and quotients: what stands before a stroke, by what follows it. Sums take all that follows."""
    factors: list[Node] = []
    pending = ""  # an operator that waits for its right side
    at = 0
    while at < len(items):
        item = items[at]
        if isinstance(item, Sign) and item.role == "multiplicative":
            pending = item.label
            at += 1
            continue
        node, at = _factor(items, at)
        if node is None:
            continue
        if pending == "/" and at < len(items) and node.kind == VARIABLE and isinstance(items[at], _Group):
            called, at = _factor(items, at)  # P(A)/P(B): what is divided by is P(B)
            node = _product([node, *([called] if called else [])])
        if pending not in ("", "·") and factors:
            left = _product(factors)
            if pending in ("∩", "∧"):
                factors = [Node(pending, CONCRETE, [*(left.children if left.label == pending else [(ANY, left)]), (ANY, node)])]
            else:
                factors = [_ordered(pending, [left, node])]
        else:
            factors.append(node)
        pending = ""
    return _product(factors) if factors else None


def _product(factors: list[Node]) -> Node:
    if len(factors) == 1:
        return factors[0]
    children: list[tuple[int, Node]] = []
    for factor in factors:
        children += factor.children if factor.label == "·" and factor.kind == CONCRETE else [(ANY, factor)]
    return Node("·", CONCRETE, children)


def _factor(items: list[_Item], at: int) -> tuple[Node | None, int]:
    """The operand that begins at `at`, and where the next one may begin."""
    item = items[at]
    if isinstance(item, Sign) and item.role == "big":
        node = Node(item.label)
        _scripted(node, item, LOWER, UPPER)
        if body := _multiplied(items[at + 1 :]):
            node.children.append((BODY, body))
        return node, len(items)
    if isinstance(item, Sign) and item.role in ("function", "prefix"):
        return _applied(items, at)
    node = _operand(item)
    at += 1
    while at < len(items) and _role(items[at]) == "postfix" and node:
        mark = items[at]
        assert isinstance(mark, Sign)
        node = _powered(Node(mark.label, CONCRETE, [(ANY, node)]), mark)
        at += 1
    return node, at


def _applied(items: list[_Item], at: int) -> tuple[Node | None, int]:
    """A function and its argument: the group behind it, else the factors up to the next operator, function or group."""
    sign = items[at]
    assert isinstance(sign, Sign)
    node = Node(sign.label)
    is_limit = sign.label in LIMITS
    if sign.sub and (index := operator_tree(sign.sub)):
        node.children.append((LOWER if is_limit else INDEX, index))
    at += 1
    argument: Node | None = None
    if at < len(items) and isinstance(items[at], _Group) and not is_limit:
        group = items[at]
        assert isinstance(group, _Group)
        grouping = group.opening in "([{"
        argument = _parse(group.items) if grouping else _group(group)
        at += 1
        result_script = group.scripts if grouping else None
    else:
        end = at
        while end < len(items) and (is_limit or end == at or _role(items[end]) in ("atom", "fraction", "root")):
            if _role(items[end]) == "multiplicative":
                break
            end += 1
        if end > at and end <= len(items) and _role(items[at]) in ("function", "big", "prefix"):
            argument, end = _factor(items, at)
        elif end > at:
            argument = _multiplied(items[at:end])
        at = end
        result_script = None
    if argument:
        node.children.append((BODY, argument))
    if node.label == "exp" and argument:
        node = Node("^", CONCRETE, [(FIRST, Node("e", VARIABLE)), (SECOND, argument)])
    node = _powered(node, sign)
    return (_powered(node, result_script) if result_script else node), at


def _operand(item: _Item) -> Node | None:
    if isinstance(item, _Group):
        return _group(item)
    match item.role:
        case "fraction":
            node = _ordered("/", [part for row in item.parts if (part := operator_tree(row))])
        case "root":
            radicand = operator_tree(item.parts[0])
            node = Node("√", CONCRETE, [(ANY, radicand)] if radicand else [])
            if len(item.parts) > 1 and (index := operator_tree(item.parts[1])) and not (index.label == "2" and not index.children):
                node.children.append((INDEX, index))
        case "binomial" | "matrix":
            node = _ordered(item.label, [part for row in item.parts if (part := operator_tree(row))])
        case "group":
            inner = operator_tree(item.parts[0]) if item.parts else None
            node = inner or Node("□", VARIABLE)
        case _:
            node = Node(item.label, item.kind)
            if item.sub and (index := operator_tree(item.sub)):
                node.children.append((INDEX, index))
            return _powered(_accented(node, item), item)
    node = _accented(node, item)
    if item.sub and (index := operator_tree(item.sub)):
        node.children.append((INDEX, index))
    return _powered(node, item)


def _accented(node: Node, sign: Sign) -> Node:
    for accent in sign.accents:
        node.children.append((ACCENT, Node(f"accent {accent}")))
    return node


def _group(group: _Group) -> Node | None:
    """Round brackets that only group are nothing; of other fences, and of lists, the tree says so."""
    inner = _parse(group.items)
    if inner is None:
        inner = Node("()")
    if group.opening in _NAMED_FENCES and (group.opening == group.closing or _FENCES.get(group.opening) == group.closing):
        inner = Node(_NAMED_FENCES[group.opening], CONCRETE, [(ANY, inner)])
    elif inner.label == "," and (group.opening, group.closing) != ("(", ")"):
        inner = Node(f"{group.opening},{group.closing}", CONCRETE, inner.children)
    sign = group.scripts
    if sign.sub and (index := operator_tree(sign.sub)):
        inner = Node("index", CONCRETE, [(FIRST, inner), (INDEX, index)])
    return _powered(inner, sign)


def _powered(node: Node, sign: Sign) -> Node:
    """The node with the sign's superscript: primes, else a power."""
    script = [part for part in sign.sup if part.role != "prime"]
    n_primes = len(sign.sup) - len(script)
    if n_primes:
        node = Node("′" * min(n_primes, 4), CONCRETE, [(PRIME, node)])
    power = operator_tree(script)
    if power is None:
        return node
    if power.label == "/" and [child.label for _, child in power.children] == ["1", "2"]:
        return Node("√", CONCRETE, [(ANY, node)])
    return Node("^", CONCRETE, [(FIRST, node), (SECOND, power)])


def _scripted(node: Node, sign: Sign, lower: int, upper: int) -> None:
    for row, edge in ((sign.sub, lower), (sign.sup, upper)):
        if row and (child := operator_tree(row)):
            node.children.append((edge, child))


def _ordered(label: str, nodes: list[Node]) -> Node:
    return Node(label, CONCRETE, [(_ORDERED[min(i, 3)], node) for i, node in enumerate(nodes)])
