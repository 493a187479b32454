"""tracewords: trace-moment hierarchies of attention, from model to checked bound."""

__version__ = "0.1.0"
