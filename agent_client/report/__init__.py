"""A replay as one self-contained HTML page. The extra `report` brings the template engine."""

from .material import Material, gather
from .page import render
from .prices import BadPrices, Prices, read_prices

__all__ = ["BadPrices", "Material", "Prices", "gather", "read_prices", "render"]
