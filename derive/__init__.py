"""From a model to its equations: words, hierarchy, couplings, source code.  Symbols only."""
