"""A tokenizer for tests of pictures."""


class Words:
    """A tokenizer whose token i is the text `w<i>`, or what is given."""

    def __init__(self, **special):
        self.special = {int(k[1:]): v for k, v in special.items()}

    def decode(self, ids):
        return "".join(self.special.get(i, f"w{i}") for i in ids)
