"""Wrong answers to the blanks of lesson 04."""


def returns_p(p, q):
    return list(p)


def is_not_scaled(p, q):
    return [max(0, a - b) for a, b in zip(p, q)]


def has_no_guard(p, q):
    missing = [max(0, a - b) for a, b in zip(p, q)]
    return [m / sum(missing) for m in missing]


def loses_fractions(p, q):
    missing = [max(0.0, float(a) - float(b)) for a, b in zip(p, q)]
    return [m / sum(missing) for m in missing] if sum(missing) > 0 else list(p)


def counts_ways(run):
    todo, found = [[]], {}
    while todo:
        answers = todo.pop()
        result, options = run(answers)
        if options is None:
            found[result] = found.get(result, 0) + 1
        else:
            todo += [[*answers, answer] for answer, _ in options]
    return found


def takes_the_last_share(run):
    todo, found = [([], 1)], {}
    while todo:
        answers, chance = todo.pop()
        result, options = run(answers)
        if options is None:
            found[result] = found.get(result, 0) + chance
        else:
            todo += [([*answers, answer], share) for answer, share in options]
    return found


def overwrites(run):
    todo, found = [([], 1)], {}
    while todo:
        answers, chance = todo.pop()
        result, options = run(answers)
        if options is None:
            found[result] = chance
        else:
            todo += [([*answers, answer], chance * share) for answer, share in options]
    return found


def forgets_earlier_answers(run):
    todo, found = [([], 1)], {}
    while todo:
        answers, chance = todo.pop()
        result, options = run(answers)
        if options is None:
            found[result] = found.get(result, 0) + chance
        else:
            todo += [(answers, chance * share) for _, share in options]
    return found


def is_the_token_rule(drafts, q, p):
    rho = [1]
    for i, x in enumerate(drafts):
        rho.append(rho[-1] * min(1, p[i][x] / q[i][x]))
    return rho


def is_never_cut(drafts, q, p):
    rho = [1]
    for i, x in enumerate(drafts):
        rho.append(rho[-1] * p[i][x] / q[i][x])
    return rho


def has_no_first(drafts, q, p):
    rho = [1]
    for i, x in enumerate(drafts):
        rho.append(min(1, rho[-1] * p[i][x] / q[i][x]))
    return rho[1:]


def is_the_mass(rho, p_next, q_next):
    return sum(max(0, rho * a - b) for a, b in zip(p_next, q_next))


def divides_by_zero(rho, p_next, q_next):
    mass = sum(max(0, rho * a - b) for a, b in zip(p_next, q_next))
    return mass / (mass + 1 - rho)


def forgets_rho(rho, p_next, q_next):
    mass = sum(max(0, a - b) for a, b in zip(p_next, q_next))
    return 1 if rho == 1 else mass / (mass + 1 - rho)


WRONG = {
    "residual": {
        returns_p: "this is p",
        is_not_scaled: "does not sum to one",
        has_no_guard: "return a copy of p",
        loses_fractions: "a fraction became a float",
    },
    "visit": {
        counts_ways: "by its chance",
        takes_the_last_share: "multiply the shares",
        overwrites: "add their chances up",
        forgets_earlier_answers: "one more answer than before",
    },
    "ratios": {
        is_the_token_rule: "cut the product",
        is_never_cut: "never cut",
        has_no_first: "rho_0 = 1 comes first",
    },
    "stop": {
        is_the_mass: "that is M",
        divides_by_zero: "answer that first",
        forgets_rho: "M without rho",
    },
}
