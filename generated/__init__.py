"""Solvers written by ``tracewords generate`` for the shipped models; never edited by hand."""
