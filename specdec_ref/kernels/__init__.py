"""Compiled loops and matrix products for CPUs, Triton kernels for GPUs."""
