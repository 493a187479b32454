"""Numbers only: kernels, closures, integration, SGD, bounds, figures.  Never sympy, never derive."""
