"""Wrong answers to the blanks of lesson 05."""


def counts_all(drafted, best):
    return sum(d == b for d, b in zip(drafted, best))


def counts_the_rejected_one(drafted, best):
    for i, draft in enumerate(drafted):
        if draft != best[i]:
            return i + 1
    return len(drafted)


def counts_the_targets_own(drafted, best):
    for i, draft in enumerate(drafted):
        if draft != best[i]:
            return i + 1
    return len(drafted) + 1


def takes_the_next_row(drafted, best):
    accepted = 0
    while accepted < len(drafted) and accepted + 1 < len(best) and drafted[accepted] == best[accepted + 1]:
        accepted += 1
    return accepted


def falls_through(drafted, best):
    for i, draft in enumerate(drafted):
        if draft != best[i]:
            return i


def takes_nothing_back(cache, tokens):
    cache.truncate(cache.length)


def keeps_the_pending_one(cache, tokens):
    cache.truncate(min(cache.length, len(tokens)))


def loses_one(cache, tokens):
    cache.truncate(len(tokens) - 2)


def empties(cache, tokens):
    cache.truncate(0)


def forgets_the_extra_token(gamma, room):
    return min(gamma, room)


def always_gamma(gamma, room):
    return gamma


def forgets_gamma(gamma, room):
    return room - 1


def drafts_too_few(gamma, room):
    return max(0, min(gamma, room - 2))


def drops_the_end(emitted, eos):
    kept = []
    for token in emitted:
        if token in eos:
            break
        kept.append(token)
    return kept


def looks_at_the_last(emitted, eos):
    return emitted if emitted[-1] in eos else list(emitted)


def knows_one_end(emitted, eos):
    eos = list(eos)[:1]
    for at, token in enumerate(emitted):
        if token in eos:
            return emitted[: at + 1]
    return emitted


def only_the_pending_one(tokens, held):
    return tokens[-1:]


def all_but_the_pending_one(tokens, held):
    return tokens[held:-1]


def always_two(tokens, held):
    return tokens[-2:]


def everything(tokens, held):
    return tokens


def what_is_there(tokens, held):
    return tokens[:held]


WRONG = {
    "accept_prefix": {
        counts_all: "all drafts that agree were counted",
        counts_the_rejected_one: "one too many",
        counts_the_targets_own: "nor the target's own token",
        takes_the_next_row: "Row i judges draft i",
        falls_through: "is there a return",
    },
    "roll_back": {
        takes_nothing_back: "nothing was taken back",
        keeps_the_pending_one: "the newest committed token is pending",
        loses_one: "one committed token too many is gone",
        empties: "the cache was emptied",
    },
    "limit": {
        forgets_the_extra_token: "one token more than it drafts",
        always_gamma: "the room is not looked at",
        forgets_gamma: "never more than gamma",
        drafts_too_few: "one draft more would fit",
    },
    "cut": {
        drops_the_end: "the end token belongs to the text",
        looks_at_the_last: "stands inside the block",
        knows_one_end: "several tokens may end the text",
    },
    "missing": {
        only_the_pending_one: "the last draft is missing as well",
        all_but_the_pending_one: "leaves out the pending token",
        always_two: "always two tokens",
        everything: "everything is fed again",
        what_is_there: "the tokens that the cache holds",
    },
}
