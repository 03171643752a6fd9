"""Wrong answers to the blanks of lesson 02."""

import torch


def forgets_itself(q, k, v, K, V):
    output = torch.softmax(K @ q / len(q) ** 0.5, 0) @ V
    return output, torch.cat([K, k[None]]), torch.cat([V, v[None]])


def scales_nothing(q, k, v, K, V):
    K, V = torch.cat([K, k[None]]), torch.cat([V, v[None]])
    return torch.softmax(K @ q, 0) @ V, K, V


def returns_the_old_cache(q, k, v, K, V):
    keys, values = torch.cat([K, k[None]]), torch.cat([V, v[None]])
    return torch.softmax(keys @ q / len(q) ** 0.5, 0) @ values, K, V


def returns_the_output_alone(q, k, v, K, V):
    keys, values = torch.cat([K, k[None]]), torch.cat([V, v[None]])
    return torch.softmax(keys @ q / len(q) ** 0.5, 0) @ values


def has_a_cache(prompt, new_tokens):
    return prompt + new_tokens - 1


def counts_the_first_new_token_too_early(prompt, new_tokens):
    return sum(range(prompt + 1, prompt + new_tokens + 1))


def does_not_grow(prompt, new_tokens):
    return prompt * new_tokens


def counts_forward_passes(prompt, new_tokens):
    return new_tokens


def keeps_keys_only(layers, kv_heads, head_dim, bytes_per_number):
    return layers * kv_heads * head_dim * bytes_per_number


def counts_numbers(layers, kv_heads, head_dim, bytes_per_number):
    return 2 * layers * kv_heads * head_dim


def sees_one_layer(layers, kv_heads, head_dim, bytes_per_number):
    return 2 * kv_heads * head_dim * bytes_per_number


def takes_all(memory, weights, per_user, usable):
    return max(0, (memory - weights) // per_user)


def shares_what_is_left(memory, weights, per_user, usable):
    return max(0, int(usable * (memory - weights)) // per_user)


def forgets_the_weights(memory, weights, per_user, usable):
    return int(usable * memory) // per_user


def goes_below_zero(memory, weights, per_user, usable):
    return int(usable * memory - weights) // per_user


def cuts_users(memory, weights, per_user, usable):
    return max(0, (usable * memory - weights) / per_user)


def rounds_users_up(memory, weights, per_user, usable):
    return max(0, -int(-(usable * memory - weights) // per_user))


WRONG = {
    "step": {
        forgets_itself: "meets itself",
        scales_nothing: "square root of d",
        returns_the_old_cache: "without the new token",
        returns_the_output_alone: "Three tensors are wanted",
    },
    "tokens": {
        has_a_cache: "that is with a cache",
        counts_the_first_new_token_too_early: "the prompt alone",
        does_not_grow: "one token more than the last",
        counts_forward_passes: "the number of forward passes",
    },
    "bytes": {
        keeps_keys_only: "a key *and* a value",
        counts_numbers: "bytes_per_number bytes",
        sees_one_layer: "every layer",
    },
    "users": {
        takes_all: "the share that may be",
        shares_what_is_left: "not of what the weights leave",
        forgets_the_weights: "the weights take memory",
        goes_below_zero: "0 users",
        cuts_users: "round down",
        rounds_users_up: "rounded up",
    },
}
