"""Simulations that lessons run."""
