"""Workers of a benchmark that measure in this process."""


class Inline:
    """Workers that do it here."""

    def each(self, measure, arguments):
        return [measure(*each) for each in arguments]
