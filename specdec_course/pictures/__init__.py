"""Figures and widgets of the lessons."""
