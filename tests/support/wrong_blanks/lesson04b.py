"""Wrong answers to the blanks of lesson 04b."""

import math


def swapped(right, wrong, share):
    return [share * a + (1 - share) * b for a, b in zip(right, wrong)]


def too_much(right, wrong, share):
    return [a + share * b for a, b in zip(right, wrong)]


def half(counts, distribution):
    return sum(c * math.log(c / (sum(counts) * p)) for c, p in zip(counts, distribution) if c)


def pearson(counts, distribution):
    n = sum(counts)
    return sum((c - n * p) ** 2 / (n * p) for c, p in zip(counts, distribution))


def upside_down(counts, distribution):
    return 2 * sum(c * math.log(sum(counts) * p / c) for c, p in zip(counts, distribution) if c)


WRONG = {
    "mixture": {swapped: "are swapped", too_much: "1 - share of the calls"},
    "g": {half: "a factor of 2", pearson: "Pearson", upside_down: "count / expected"},
}
