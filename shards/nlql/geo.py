"""Places on the earth in metadata: how far they lie from a point, whether they lie in a box."""

from typing import Any

import numpy as np

from shards.nlql.errors import ExecutionError
from shards.nlql.values import number_of, shown
from shards.types import Array

RADIUS_M = 6_371_008.8  # WGS 84: the mean of its three half axes, (2a + b) / 3


def point_of(place: Any) -> tuple[float, float] | None:
    """(latitude, longitude) in degrees of {"lat": …, "lon": …}, [lat, lon] or "lat,lon"; None of anything else, and off the globe."""
    if isinstance(place, dict):
        pair = [place.get("lat"), place.get("lon")]
    elif isinstance(place, str):
        pair = [part.strip() for part in place.split(",")]
    elif isinstance(place, list | tuple):
        pair = list(place)
    else:
        return None
    if len(pair) != 2 or (lat := number_of(pair[0])) is None or (lon := number_of(pair[1])) is None:
        return None
    return (lat, lon) if -90 <= lat <= 90 and -180 <= lon <= 180 else None


def distance_m(lat: Array, lon: Array, to_lat: float, to_lon: float) -> Array:
    """Metres along the great circle, by the haversine formula on a sphere of the mean radius: within 0.6 % of the ellipsoid's.

    lat, lon: (n,) degrees, nan where there is no place, and so is the distance.
    """
    a, b = np.radians(lat), np.radians(to_lat)
    half = np.sin((b - a) / 2) ** 2 + np.cos(a) * np.cos(b) * np.sin(np.radians(to_lon - lon) / 2) ** 2
    return 2 * RADIUS_M * np.arcsin(np.sqrt(np.clip(half, 0.0, 1.0)))


def in_box(lat: Array, lon: Array, south: float, west: float, north: float, east: float) -> Array:
    """(n,) bool: places in a box, its edges included; where west > east it goes over the antimeridian."""
    inside = (lat >= south) & (lat <= north)
    if west <= east:
        return inside & (lon >= west) & (lon <= east)
    return inside & ((lon >= west) | (lon <= east))


def checked_point(lat: Any, lon: Any) -> tuple[float, float] | None:
    """The point that GEO_DISTANCE measures to; None if a part is null. Raises ExecutionError."""
    if lat is None or lon is None:
        return None
    return _degrees("GEO_DISTANCE", "latitude", lat, 90), _degrees("GEO_DISTANCE", "longitude", lon, 180)


def checked_box(*edges: Any) -> tuple[float, float, float, float] | None:
    """The box of GEO_WITHIN: south, west, north, east; None if an edge is null. Raises ExecutionError."""
    if None in edges:
        return None
    names = (("south", 90), ("west", 180), ("north", 90), ("east", 180))
    south, west, north, east = (_degrees("GEO_WITHIN", name, edge, most) for (name, most), edge in zip(names, edges, strict=True))
    if south > north:
        raise ExecutionError(f"GEO_WITHIN: its south edge {south} lies north of its north edge {north}. Write south, west, north, east.")
    return south, west, north, east


def _degrees(function: str, name: str, value: Any, most: int) -> float:
    number = number_of(value)
    if number is None or not -most <= number <= most:
        raise ExecutionError(f"{function}: its {name} is {shown(value)}; expected degrees from -{most} to {most}.")
    return number


def geo_distance(place: Any, lat: Any, lon: Any) -> float | None:
    """Metres from a place to a point; null where there is no place."""
    to, at = checked_point(lat, lon), point_of(place)
    if to is None or at is None:
        return None
    return float(distance_m(np.array([at[0]]), np.array([at[1]]), *to)[0])  # the very arithmetic of many rows


def geo_within(place: Any, south: Any, west: Any, north: Any, east: Any) -> bool:
    """Whether a place lies in a box of degrees; false where there is no place."""
    box, at = checked_box(south, west, north, east), point_of(place)
    return box is not None and at is not None and bool(in_box(np.array([at[0]]), np.array([at[1]]), *box)[0])
