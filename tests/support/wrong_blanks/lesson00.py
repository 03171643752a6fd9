"""Wrong answers to the blanks of lesson 00."""


def finds_itself(tokens, gamma):
    for i in range(len(tokens) - 2, -1, -1):
        if tokens[i : i + 2] == tokens[-2:]:
            return tokens[i + 2 : i + 2 + gamma]
    return []


def takes_the_first(tokens, gamma):
    for i in range(len(tokens) - 2):
        if tokens[i : i + 2] == tokens[-2:]:
            return tokens[i + 2 : i + 2 + gamma]
    return []


def repeats_the_two(tokens, gamma):
    for i in range(len(tokens) - 3, -1, -1):
        if tokens[i : i + 2] == tokens[-2:]:
            return tokens[i : i + gamma]
    return []


def forgets_the_limit(tokens, gamma):
    for i in range(len(tokens) - 3, -1, -1):
        if tokens[i : i + 2] == tokens[-2:]:
            return tokens[i + 2 :]
    return []


def no_return_for_new_text(tokens, gamma):
    for i in range(len(tokens) - 3, -1, -1):
        if tokens[i : i + 2] == tokens[-2:]:
            return tokens[i + 2 : i + 2 + gamma]


def misses_pairs_that_share_a_token(tokens, gamma):
    for i in range(len(tokens) - 4, -1, -1):
        if tokens[i : i + 2] == tokens[-2:]:
            return tokens[i + 2 : i + 2 + gamma]
    return []


def never_looks_at_the_beginning(tokens, gamma):
    for i in range(len(tokens) - 3, 0, -1):
        if tokens[i : i + 2] == tokens[-2:]:
            return tokens[i + 2 : i + 2 + gamma]
    return []


def no_own_token(guesses, choices):
    kept = []
    for guess, choice in zip(guesses, choices):
        if guess != choice:
            break
        kept.append(guess)
    return kept


def keeps_later_matches(guesses, choices):
    return [g for g, c in zip(guesses, choices) if g == c] + [choices[-1]]


def forgets_the_bonus(guesses, choices):
    kept = []
    for guess, choice in zip(guesses, choices):
        kept.append(choice)
        if guess != choice:
            break
    return kept


WRONG = {
    "lookup": {
        finds_itself: "match themselves",
        takes_the_first: "the first place",
        repeats_the_two: "the two tokens themselves",
        forgets_the_limit: "more than gamma",
        no_return_for_new_text: "is there a return",
        misses_pairs_that_share_a_token: "the search starts too early",
        never_looks_at_the_beginning: "the search ends too early",
    },
    "round": {
        no_own_token: "own token is missing",
        keeps_later_matches: "after the first wrong one must go",
        forgets_the_bonus: "the token after them",
    },
}
