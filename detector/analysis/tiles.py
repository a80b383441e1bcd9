"""Tile quantisation: how many more FLOPs a matrix product executes than it needs.

A kernel computes whole tiles: it pads M and N to the output tile and K to the inner one. The
padding keeps the tensor pipe busy with zeros, so OFU reads above the useful work by
``executed / ideal``. Waves are another matter: a last wave that fills few SMs leaves hardware
idle, which lowers OFU, as it should, and is no reason to correct it.

Arithmetic only; which tile a kernel took has to be known (a profiler names it in the kernel).
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

_GEMM = re.compile(
    r"(\d+)x(\d+)x(\d+)@(\d+)x(\d+)x(\d+)(?:\*([0-9]+(?:\.[0-9]+)?))?", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TiledGemm:
    """A product C[M, N] = A[M, K] B[K, N] and the tile that its kernel works in.

    Attributes
    ----------
    m, n, k
        The product's size.
    tile_m, tile_n, tile_k
        The output tile of one thread block, and the depth of one step of its inner loop.
    batch
        Equal products in one launch.
    """

    m: int
    n: int
    k: int
    tile_m: int
    tile_n: int
    tile_k: int
    batch: int = 1

    def __post_init__(self) -> None:
        for field in ("m", "n", "k", "tile_m", "tile_n", "tile_k", "batch"):
            if getattr(self, field) < 1:
                msg = f"{field} must be at least 1, not {getattr(self, field)}"
                raise ValueError(msg)

    @property
    def tiles(self) -> tuple[int, int, int]:
        """Tiles along M, N and K, the padded last ones included."""
        return (
            -(-self.m // self.tile_m),
            -(-self.n // self.tile_n),
            -(-self.k // self.tile_k),
        )

    @property
    def ctas(self) -> int:
        """Output tiles, each the work of one thread block."""
        tiles_m, tiles_n, _ = self.tiles
        return self.batch * tiles_m * tiles_n

    @property
    def ideal_flop(self) -> int:
        """What the product needs: ``2 M N K`` times the batch."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def executed_flop(self) -> int:
        """What the hardware executes: the same with M, N and K padded to whole tiles."""
        *_, tiles_k = self.tiles
        return 2 * self.ctas * self.tile_m * self.tile_n * tiles_k * self.tile_k

    @property
    def executed_over_ideal(self) -> float:
        """The factor, at least 1, by which OFU overstates this product's useful work."""
        return self.executed_flop / self.ideal_flop


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighted:
    """A product and how often it runs, relative to the others of a step."""

    gemm: TiledGemm
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.weight < math.inf:
            msg = f"a weight must be above 0, not {self.weight:g}"
            raise ValueError(msg)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return what ``MxNxK@TMxTNxTK`` or ``MxNxK@TMxTNxTK*WEIGHT`` says.

        Raises
        ------
        ValueError
            When ``text`` has another form, or a size or the weight is 0.
        """
        match = _GEMM.fullmatch(text.strip())
        if match is None:
            msg = (
                f"{text!r} is no product; write MxNxK@TMxTNxTK[*WEIGHT], "
                "for example 8192x8192x8192@128x256x64*3"
            )
            raise ValueError(msg)
        *sizes, weight = match.groups()
        m, n, k, tile_m, tile_n, tile_k = map(int, sizes)
        gemm = TiledGemm(m=m, n=n, k=k, tile_m=tile_m, tile_n=tile_n, tile_k=tile_k)
        return cls(gemm=gemm, weight=float(weight or 1))


def executed_over_ideal(products: Iterable[Weighted]) -> float:
    """Return the factor of a mix of products, each weighted by how often it runs.

    FLOPs are added before they are divided. A mean of the products' own factors would let a
    tiny product with a large factor speak as loudly as the one that does all the work.

    Raises
    ------
    ValueError
        When there is no product.
    """
    executed = ideal = 0.0
    for product in products:
        executed += product.weight * product.gemm.executed_flop
        ideal += product.weight * product.gemm.ideal_flop
    if not ideal:
        msg = "no product: give at least one"
        raise ValueError(msg)
    # 1 is the bound of exact arithmetic; rounding of the sums may end a hair below.
    return max(1.0, executed / ideal)


def tile_corrected(ofu: float, factor: float) -> float:
    """Return the useful part of ``ofu``: without the work on padding.

    ``factor`` is :func:`executed_over_ideal` of the products that ran.
    """
    return ofu / factor


def waves(ctas: int, sms: int) -> int:
    """Return how many rounds ``ctas`` thread blocks need on ``sms`` SMs, one on each."""
    return -(-ctas // sms)


def wave_efficiency(ctas: int, sms: int) -> float:
    """Return how full the waves are, 0..1: idle SMs of the last wave lower it."""
    return ctas / (waves(ctas, sms) * sms)
