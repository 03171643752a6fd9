"""Wrong answers to the blanks of lesson 03."""


def in_one_piece(pool, table, i):
    return i


def no_offset(pool, table, i):
    return table[i // pool.block_size] * pool.block_size


def block_as_slot(pool, table, i):
    return table[i // pool.block_size] + i % pool.block_size


def swapped(pool, table, i):
    return table[i % pool.block_size] * pool.block_size + i // pool.block_size


def counts_nothing(pool, table):
    return list(table)


def the_same_list(pool, table):
    for block in table:
        pool.refs[block] += 1
    return table


def forgets_to_return(pool, table):
    for block in table:
        pool.refs[block] += 1


def take(pool, n):
    if n > len(pool.free):
        raise MemoryError
    taken = [pool.free.popleft() for _ in range(n)]
    for block in taken:
        pool.refs[block] = 1
    return taken


def never_copies(pool, table, length, n):
    table += take(pool, -(-(length + n) // pool.block_size) - len(table))
    return []


def keeps_the_count(pool, table, length, n):
    shared = n > 0 and length % pool.block_size > 0 and pool.refs[table[-1]] > 1
    fresh = take(pool, -(-(length + n) // pool.block_size) - len(table) + shared)
    if not shared:
        table += fresh
        return []
    source = table.pop()
    table += fresh
    return [(source, fresh[0])]


def copies_blocks_of_its_own(pool, table, length, n):
    copied = n > 0 and length % pool.block_size > 0
    fresh = take(pool, -(-(length + n) // pool.block_size) - len(table) + copied)
    if not copied:
        table += fresh
        return []
    source = table.pop()
    pool.refs[source] -= 1
    table += fresh
    return [(source, fresh[0])]


def let_go(pool, table):
    for block in reversed(table):
        pool.refs[block] -= 1
        if pool.refs[block] == 0:
            pool.free.append(block)


def rounds_down(pool, table, length):
    keep = length // pool.block_size
    let_go(pool, table[keep:])
    del table[keep:]


def only_shortens(pool, table, length):
    del table[-(-length // pool.block_size) :]


def only_lets_go(pool, table, length):
    let_go(pool, table[-(-length // pool.block_size) :])


def lets_go_from_the_front(pool, table, length):
    stays = -(-length // pool.block_size)
    let_go(pool, table[stays:][::-1])
    del table[stays:]


def all_of_it(n_tokens, block_size):
    return n_tokens // block_size


def a_block_too_many(n_tokens, block_size):
    return max(0, n_tokens // block_size - 1)


def in_tokens(n_tokens, block_size):
    return n_tokens - 1


WRONG = {
    "slot": {
        in_one_piece: "as if the sequence lay in one piece",
        no_offset: "the offset in the block is missing",
        block_as_slot: "begins at slot b * block_size",
        swapped: "// and % are swapped",
    },
    "fork": {
        counts_nothing: "it will be free while it is read",
        the_same_list: "no list of its own",
        forgets_to_return: "no list of whole numbers",
    },
    "append_cow": {
        never_copies: "written without a copy",
        keeps_the_count: "it can never be free again: a leak",
        copies_blocks_of_its_own: "holds the block alone writes in place",
    },
    "truncate": {
        rounds_down: "rounded down",
        only_shortens: "it can never be free again: a leak",
        only_lets_go: "it will be free while it is read",
        lets_go_from_the_front: "its last block first",
    },
    "reusable": {
        all_of_it: "its last token must be left over",
        a_block_too_many: "a whole block too many",
        in_tokens: "that is in tokens",
    },
}
