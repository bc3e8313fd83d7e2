"""The cheapest of the most even placements by another method: integer programming (HiGHS), for `cluster.assignment` to agree with."""

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array


def least_cost(cost, copies, limits=None, per_zone=None, zones=None, sizes=None, room=None):
    """The least cost of `copies` copies of every row on distinct columns of which the loads' sum of squares is least; None: impossible.

    cost: (n_rows, n_columns), inf where not allowed. sizes, room: bytes of rows and columns, in place of limits.
    """
    n_rows, n_columns = cost.shape
    copies = min(copies, n_columns)
    limits = np.full(n_columns, n_rows) if limits is None else np.minimum(limits, n_rows)
    n_pairs = n_rows * n_columns
    # One variable a pair, then one a slot of each column: the k-th slot costs 2k - 1, so the fullest column has the dearest slots.
    slots = [(column, k) for column in range(n_columns) for k in range(int(limits[column]))]
    n = n_pairs + len(slots)
    rows, columns, values, low, high = [], [], [], [], []

    def constrain(entries, least, most):
        for column, value in entries:
            rows.append(len(low))
            columns.append(column)
            values.append(value)
        low.append(least)
        high.append(most)

    for r in range(n_rows):
        constrain([(r * n_columns + c, 1) for c in range(n_columns)], copies, copies)
    for c in range(n_columns):
        filled = [(n_pairs + i, -1) for i, (column, _) in enumerate(slots) if column == c]
        constrain([(r * n_columns + c, 1) for r in range(n_rows)] + filled, 0, 0)
        if sizes is not None and np.isfinite(room[c]):
            constrain([(r * n_columns + c, sizes[r]) for r in range(n_rows)], 0, room[c])
    if zones is not None:
        for r in range(n_rows):
            for zone in np.unique(zones):
                constrain([(r * n_columns + c, 1) for c in np.flatnonzero(zones == zone)], 0, per_zone)
    unevenness = np.concatenate([np.zeros(n_pairs), [2 * k + 1 for _, k in slots]])
    price = np.concatenate([np.where(np.isfinite(cost), cost, 0).ravel(), np.zeros(len(slots))])
    most = np.concatenate([np.isfinite(cost).ravel(), np.ones(len(slots))])

    def solve(objective):
        matrix = coo_array((values, (rows, columns)), shape=(len(low), n)).tocsr()
        found = milp(
            objective,
            integrality=np.ones(n),
            bounds=Bounds(0, most),
            constraints=LinearConstraint(matrix, np.array(low), np.array(high)),
            options={"mip_rel_gap": 0},
        )
        return None if found.x is None else round(float(objective @ np.round(found.x)))

    if (even := solve(unevenness)) is None:
        return None
    constrain([(i, unevenness[i]) for i in np.flatnonzero(unevenness)], 0, even)
    return solve(price)
