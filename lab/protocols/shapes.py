"""A drawn stand-in for 3DShapes: one object in a room, every factor known.

The factors are those of 3DShapes (Burgess and Kim, 2018), with the same numbers of values: hue of
floor, wall and object (10 each), scale (8), shape (4) and orientation (15). It is *not* that data
set: the room, the light and the camera are this project's, and numbers measured on one do not hold
for the other.

Images are drawn by NumPy: rays through every pixel, marched to the object by its signed distance.
The geometry is drawn once for each scale, shape and orientation; hues only color it.
"""

from __future__ import annotations

import colorsys
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

# In the order of the original's labels: how many values each factor has.
FACTORS = {"floor": 10, "wall": 10, "object": 10, "scale": 8, "shape": 4, "orientation": 15}
SHAPES = ("cube", "cylinder", "sphere", "capsule")

SIZE = 64  # pixels a side
SUPERSAMPLING = 2  # rays a pixel and axis
ROOM, HEIGHT = 4.0, 3.0  # half the room's width, and the walls' height
CAMERA, TARGET = np.array([0.0, 2.3, 3.7]), np.array([0.0, 0.85, 0.0])
LIGHT = np.array([-0.45, 0.8, 0.4]) / np.linalg.norm([-0.45, 0.8, 0.4])
FOCAL = 2.2  # distance of the image plane over half its height
CENTER, RADIUS = np.array([0.0, 0.95, 0.0]), 1.5  # of a sphere that holds the largest object
NEAR = 2e-3  # a ray as near as this has met the object
SURFACES = ("floor", "wall", "object")


def factor_grid(**fixed: int) -> np.ndarray:
    """Every combination of factors, ``[N, 6]`` in the order of ``FACTORS``, with some of them
    fixed.

    :raises ValueError: for an unknown factor or a value that it does not have.
    """
    for name, value in fixed.items():
        if name not in FACTORS or not 0 <= value < FACTORS[name]:
            raise ValueError(f"no value {value!r} of a factor {name!r}: there are {FACTORS}")
    axes = [[fixed[name]] if name in fixed else range(count) for name, count in FACTORS.items()]
    return np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(FACTORS))


def draw(factors: np.ndarray) -> np.ndarray:
    """Images ``[N, 64, 64, 3]``, uint8, of factors ``[N, 6]``."""
    factors = np.asarray(factors)
    geometry = _geometry()  # [8, 4, 15, 64, 64, 3]: the light that each surface sends to each pixel
    scale, shape, orientation = factors.T[3:]
    hues = np.stack(
        [palette(FACTORS[surface])[factors[:, j]] for j, surface in enumerate(SURFACES)], 1
    )  # [N, 3, 3]
    images = np.empty((len(factors), SIZE, SIZE, 3), np.uint8)
    for rows in np.array_split(np.arange(len(factors)), max(len(factors) // 256, 1)):
        shares = geometry[scale[rows], shape[rows], orientation[rows]]
        images[rows] = (
            (255 * np.einsum("nhws,nsc->nhwc", shares, hues[rows], optimize=True))
            .clip(0, 255)
            .round()
        )
    return images


def halve(images: np.ndarray) -> np.ndarray:
    """Half the height and width, by the mean of two by two pixels: ``[N, H, W, C]``, uint8."""
    n, height, width, channels = images.shape
    blocks = images.reshape(n, height // 2, 2, width // 2, 2, channels)
    return blocks.mean((2, 4), dtype=np.float32).round().astype(np.uint8)


def palette(num_hues: int, saturation: float = 0.85, value: float = 1.0) -> np.ndarray:
    """Colors that differ in hue alone: ``[num_hues, 3]``, values in [0, 1]."""
    return np.array([colorsys.hsv_to_rgb(k / num_hues, saturation, value) for k in range(num_hues)])


def _geometry() -> np.ndarray:
    """The drawn geometry from the cache, or drawn and put there; without a cache that can be
    written, just drawn.
    """
    path = (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        / "facetvae"
        / "shapes-1.npy"
    )
    try:
        found = np.load(path)
        if found.shape == (8, 4, 15, SIZE, SIZE, len(SURFACES)):
            return found
    except (OSError, ValueError, EOFError):
        pass  # none there yet, or not a whole one
    drawn = _draw_geometry()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            np.save(Path(folder) / path.name, drawn)
            os.replace(
                Path(folder) / path.name, path
            )  # whole or absent, whoever else draws meanwhile
    return drawn


def _draw_geometry() -> np.ndarray:
    scales = np.linspace(0.75, 1.25, FACTORS["scale"])
    angles = np.deg2rad(np.linspace(-30, 30, FACTORS["orientation"]))
    out = np.empty((len(scales), len(SHAPES), len(angles), SIZE, SIZE, len(SURFACES)), np.float32)
    for k, angle in enumerate(angles):
        origin, rays = _camera(angle)
        room, is_floor = _meet_room(origin, rays)
        for i, scale in enumerate(scales):
            for j, distance in enumerate(DISTANCES):
                out[i, j, k] = _shade(
                    origin, rays, room, is_floor, lambda p, d=distance, s=scale: s * d(p / s)
                )
    return out


def _camera(angle: float) -> tuple[np.ndarray, np.ndarray]:
    """Where the rays start, ``[3]``, and their directions ``[P, 3]``: the camera turned about the
    object.
    """
    side = SIZE * SUPERSAMPLING
    steps = (np.arange(side) + 0.5) / side * 2 - 1
    right, up = np.meshgrid(steps, -steps)
    forward = (TARGET - CAMERA) / np.linalg.norm(TARGET - CAMERA)
    x_axis = np.cross(forward, [0, 1, 0])
    y_axis = np.cross(x_axis / np.linalg.norm(x_axis), forward)
    rays = (
        FOCAL * forward
        + right[..., None] * x_axis / np.linalg.norm(x_axis)
        + up[..., None] * y_axis
    )
    rays = rays.reshape(-1, 3) / np.linalg.norm(rays.reshape(-1, 3), axis=-1, keepdims=True)
    cos, sin = np.cos(angle), np.sin(angle)
    turn = np.array([[cos, 0, sin], [0, 1, 0], [-sin, 0, cos]])
    return turn @ CAMERA, rays @ turn.T


def _meet_room(origin: np.ndarray, rays: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distance along each ray to floor or walls ``[P]``, and whether it is the floor."""
    with np.errstate(divide="ignore"):
        floor = np.where(rays[:, 1] < 0, -origin[1] / rays[:, 1], np.inf)
        walls = np.min((np.sign(rays[:, ::2]) * ROOM - origin[::2]) / rays[:, ::2], -1)
    return np.minimum(floor, walls), floor < walls


def _shade(
    origin: np.ndarray, rays: np.ndarray, room: np.ndarray, is_floor: np.ndarray, distance: Callable
) -> np.ndarray:
    """How brightly each pixel shows each surface: ``[64, 64, 3]``."""
    object_at = _march(origin, rays, distance)
    hit = object_at < room
    points = origin + room[:, None] * rays
    sides = np.abs(points[:, ::2]).argmax(-1)  # walls that face x are darker than those that face z
    light = np.where(is_floor, 0.9, np.where(sides == 0, 0.62, 0.8))
    # A soft darkening where the object stands, and the shadow that it casts on the floor.
    light[is_floor] *= 1 - 0.45 * np.exp(-4 * distance(points[is_floor]).clip(0))
    shadowed = np.flatnonzero(is_floor & ~hit & (np.abs(points[:, ::2]).max(-1) < 3))
    light[shadowed[np.isfinite(_march(points[shadowed] + 0.02 * LIGHT, LIGHT, distance))]] *= 0.6
    on_object = origin + object_at[hit, None] * rays[hit]
    normal = _normal(on_object, distance)
    gloss = (normal @ _unit(LIGHT - rays[hit].mean(0))).clip(0) ** 20
    light[hit] = 0.35 + 0.6 * (normal @ LIGHT).clip(0) + 0.1 * gloss
    surface = np.where(hit, 2, np.where(is_floor, 0, 1))
    side = SIZE, SUPERSAMPLING
    return (light[:, None] * np.eye(3)[surface]).reshape(*side, *side, 3).mean((1, 3))


def _march(origin: np.ndarray, rays: np.ndarray, distance: Callable, steps: int = 40) -> np.ndarray:
    """Distance along each ray to the object ``[P]``, infinite where it misses (sphere tracing)."""
    origin, rays = np.broadcast_arrays(origin, rays)
    # Only rays that pass within the object's bounding sphere can meet it.
    to_center = CENTER - origin
    along = (to_center * rays).sum(-1)
    under_way = np.flatnonzero(
        (np.square(to_center).sum(-1) - along**2 < RADIUS**2) & (along > -RADIUS)
    )
    out = np.full(len(origin), np.inf)
    traveled = np.maximum(along - RADIUS, 0)  # nothing is met before that sphere
    for _ in range(steps):
        left = distance(origin[under_way] + traveled[under_way, None] * rays[under_way])
        met = under_way[left < NEAR]
        out[met] = traveled[met]
        traveled[under_way] += left
        under_way = under_way[(left >= NEAR) & (traveled[under_way] < along[under_way] + RADIUS)]
    return out


def _normal(points: np.ndarray, distance: Callable, step: float = 1e-3) -> np.ndarray:
    """Outward unit normals ``[P, 3]``, by central differences of the distance."""
    shifts = step * np.eye(3)
    return _unit(
        np.stack([distance(points + shift) - distance(points - shift) for shift in shifts], -1)
    )


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


# Signed distances of points [P, 3] to each shape, standing on the floor at the room's center.


def _cube(p: np.ndarray) -> np.ndarray:
    q = np.abs(p - [0, 0.65, 0]) - 0.63
    return np.linalg.norm(q.clip(0), axis=-1) + q.max(-1).clip(max=0) - 0.02


def _cylinder(p: np.ndarray) -> np.ndarray:
    q = np.stack([np.hypot(p[:, 0], p[:, 2]) - 0.65, np.abs(p[:, 1] - 0.7) - 0.7], -1)
    return np.linalg.norm(q.clip(0), axis=-1) + q.max(-1).clip(max=0)


def _sphere(p: np.ndarray) -> np.ndarray:
    return np.linalg.norm(p - [0, 0.75, 0], axis=-1) - 0.75


def _capsule(p: np.ndarray) -> np.ndarray:
    height = p[:, 1].clip(0.5, 1.1)
    return np.linalg.norm(p - np.stack([0 * height, height, 0 * height], -1), axis=-1) - 0.5


DISTANCES = (_cube, _cylinder, _sphere, _capsule)
