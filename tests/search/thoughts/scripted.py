"""A writer that writes one known reply, wherever the search takes it up."""

OPEN = "<think>"


def scripted(reply, before):
    """The writer of ``reply`` after ``before``. It goes on after the longest beginning of the reply that ends the path."""

    def writer(text, rng):
        written = text.removeprefix(before)
        at = next(
            n
            for n in range(len(reply), -1, -1)
            if written.removesuffix("</think>").endswith(reply[:n]) or written.endswith(reply[:n])
        )
        return reply[at:]

    return writer
