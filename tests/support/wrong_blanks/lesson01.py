"""Wrong answers to the blanks of lesson 01."""


def takes_the_larger(intensity, rate, bandwidth):
    return max(rate, intensity * bandwidth)


def has_no_flat_roof(intensity, rate, bandwidth):
    return intensity * bandwidth


def has_no_slope(intensity, rate, bandwidth):
    return rate


def knows_one_chip(intensity, rate, bandwidth):
    return min(989e12, 3.35e12 * intensity)


def counts_a_flop_per_weight(n_tokens, width):
    return n_tokens * width**2 / (2 * (width**2 + 2 * n_tokens * width))


def counts_numbers_for_bytes(n_tokens, width):
    return 2 * n_tokens * width**2 / (width**2 + 2 * n_tokens * width)


def moves_weights_only(n_tokens, width):
    return 2 * n_tokens * width**2 / (2 * width**2)


def reads_the_weights_for_each_token(n_tokens, width):
    return 2 * n_tokens * width**2 / (2 * n_tokens * (width**2 + 2 * width))


def is_upside_down(n_tokens, width):
    return 2 * (width**2 + 2 * n_tokens * width) / (2 * n_tokens * width**2)


def takes_the_pass_as_one_piece(kernels, rate, bandwidth):
    return max(sum(f for f, _ in kernels) / rate, sum(b for _, b in kernels) / bandwidth)


def overlaps_nothing(kernels, rate, bandwidth):
    return sum(f / rate + b / bandwidth for f, b in kernels)


def overlaps_everything(kernels, rate, bandwidth):
    return max(max(f / rate, b / bandwidth) for f, b in kernels)


def returns_the_first(kernels, rate, bandwidth):
    for flop, nbytes in kernels:
        return max(flop / rate, nbytes / bandwidth)


WRONG = {
    "roof": {
        takes_the_larger: "it is the smaller one",
        has_no_flat_roof: "faster than the chip's rate",
        has_no_slope: "wait for its bytes",
        knows_one_chip: "use rate and bandwidth as given",
    },
    "intensity": {
        counts_a_flop_per_weight: "are 2 FLOP",
        counts_numbers_for_bytes: "takes 2 bytes",
        moves_weights_only: "what goes in and comes out",
        reads_the_weights_for_each_token: "read once, not once for each token",
        is_upside_down: "upside down",
    },
    "pass time": {
        takes_the_pass_as_one_piece: "one after the other",
        overlaps_nothing: "the larger one counts, not the sum",
        overlaps_everything: "add their times",
        returns_the_first: "came out wrong",
    },
}
