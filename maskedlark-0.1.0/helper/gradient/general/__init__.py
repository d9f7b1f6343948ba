"""The path for graphs outside the exact set: float64 autograd with coarse rounding."""
